"""Measurements: several sides do the same work in turns, and ratios compare them.

A machine that slows down or is shared affects all sides of a round, so ratios are computed within a
round. A row shows the median of each side, and the median, lowest and highest ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

__all__ = [
    "Measurement",
    "Row",
    "Target",
    "at_least",
    "at_most",
    "build_figure_row",
    "build_ratio_row",
    "format_markdown",
    "format_text",
    "run_rounds",
]

Measurement = Callable[[], float]
"""Does the work once; returns a rate, a time or a size."""

Name = TypeVar("Name")


@dataclass(frozen=True)
class Target:
    """The limit that a ratio is to reach."""

    value: float
    least: bool

    def reached(self, value: float) -> bool:
        return value >= self.value if self.least else value <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.value:g}"


def at_least(value: float) -> Target:
    """Return a target for rates: more is better."""
    return Target(value, least=True)


def at_most(value: float) -> Target:
    """Return a target for times and sizes: less is better."""
    return Target(value, least=False)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        work: name of the work.
        ours, theirs: the medians with their unit, as text.
        against: name of the other side; empty for a figure without comparison.
        ratios: ours to theirs, one per round; without comparison, the figures.
        target: None if the row is for information.
        by_processor: ratio of the work that both sides do in the same CPU time.
        postgres: the median of agentctl on PostgreSQL with its unit, as text; empty if the work
            needs no database, or is that of both.
        postgres_ratio: ratio of that to agentctl on SQLite, by CPU time where the row has it.
    """

    work: str
    ours: str
    against: str
    theirs: str
    ratios: tuple[float, ...]
    target: Target | None = None
    by_processor: float | None = None
    postgres: str = ""
    postgres_ratio: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool | None:
        return None if self.target is None else self.target.reached(self.median)

    @property
    def cells(self) -> list[str]:
        verdict = {None: "", True: "yes", False: "NO"}[self.reached]
        target = "" if self.target is None else str(self.target)
        ratio = spread = ""
        if self.against:
            spread = f"{format_number(min(self.ratios))} to {format_number(max(self.ratios))}"
            ratio = format_number(self.median)
        cpu = "" if self.by_processor is None else format_number(self.by_processor)
        return [
            self.work,
            self.ours,
            self.against,
            self.theirs,
            ratio,
            spread,
            cpu,
            target,
            verdict,
            self.postgres,
            "" if self.postgres_ratio is None else format_number(self.postgres_ratio),
        ]

    def with_postgres(
        self, values: Sequence[float], own: Sequence[float], unit: str, ratio: float | None = None
    ) -> Row:
        """Add the figures of agentctl on PostgreSQL, of the same rounds.

        Args:
            values, own: the figures on PostgreSQL and on SQLite.
            ratio: the ratio by CPU time; None for the median ratio of the figures.
        """
        if ratio is None:
            ratio = statistics.median(a / b for a, b in zip(values, own, strict=True))
        shown = f"{format_number(statistics.median(values))}{unit}"
        return replace(self, postgres=shown, postgres_ratio=ratio)


HEAD = [
    "work", "agentctl", "against", "", "ratio", "spread", "by CPU", "target", "reached",
    "on PostgreSQL", "to SQLite",
]  # fmt: skip


def run_rounds(acts: Mapping[Name, Measurement], rounds: int) -> dict[Name, list[float]]:
    """Run every measurement once per round, in alternating order."""
    names = list(acts)
    found: dict[Name, list[float]] = {name: [] for name in names}
    for count in range(rounds):
        for name in names if count % 2 == 0 else reversed(names):
            found[name].append(acts[name]())
    return found


def build_ratio_row(
    work: str,
    ours: Sequence[float],
    against: str,
    theirs: Sequence[float],
    unit: str,
    target: Target | None = None,
) -> Row:
    """Build the row of two sides of the same rounds; `unit` may have a `{}` for the number."""
    ratios = tuple(one / other for one, other in zip(ours, theirs, strict=True))
    shown = unit if "{}" in unit else "{}" + unit
    one, other = (shown.format(format_number(statistics.median(side))) for side in (ours, theirs))
    return Row(work, one, against, other, ratios, target)


def build_figure_row(
    work: str, values: Sequence[float], unit: str, target: Target | None = None
) -> Row:
    """Build the row of a figure without comparison; its target is in the same unit."""
    return Row(
        work, f"{format_number(statistics.median(values))}{unit}", "", "", tuple(values), target
    )


def format_number(value: float) -> str:
    """Format a number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def format_text(rows: Iterable[Row]) -> str:
    """Format the table for a terminal."""
    lines = [HEAD, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def format_markdown(rows: Iterable[Row]) -> str:
    """Format the table as Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
