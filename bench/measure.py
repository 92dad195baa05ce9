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
    "format_columns",
    "format_markdown",
    "format_text",
    "measure_spread",
    "run_rounds",
]

Measurement = Callable[[], float]
"""Does the work once; returns a rate, a time or a size."""

Name = TypeVar("Name")

MAXIMUM_OTHER_WORK = 0.2
"""Share of the cores that other programs may use while a row is measured."""

MAXIMUM_SPREAD = 2.0
"""Bound of the spread of the rounds of a row (`measure_spread`)."""


@dataclass(frozen=True)
class Target:
    """The limit that a ratio is to reach; with `by_processor`, the ratio by CPU time."""

    value: float
    least: bool
    by_processor: bool = False

    def reached(self, value: float) -> bool:
        return value >= self.value if self.least else value <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.value:g}{' by CPU' * self.by_processor}"


def at_least(value: float, *, by_processor: bool = False) -> Target:
    """Return a target for rates: more is better."""
    return Target(value, least=True, by_processor=by_processor)


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
        other_work: share of the cores that other programs used during the measurement.
        timed: False for figures that other work hardly changes, such as sizes and CPU time.
        failure: the reason why there is no figure.
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
    other_work: float = 0.0
    timed: bool = True
    failure: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        if self.target.by_processor and self.by_processor is not None:
            return self.target.reached(self.by_processor)
        return self.target.reached(self.median)

    @property
    def doubt(self) -> str:
        """The reason why the row shows the machine more than the servers, or ''."""
        if self.failure:
            return self.failure
        if self.timed and self.other_work > MAXIMUM_OTHER_WORK:
            return f"other work {self.other_work:.0%}"
        spread = measure_spread(self.ratios)
        return f"spread {format_number(spread)}" if spread > MAXIMUM_SPREAD else ""

    @property
    def cells(self) -> list[str]:
        verdict = {None: "", True: "yes", False: "NO"}[self.reached]
        if self.doubt:
            verdict = f"unclear: {self.doubt}"
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


def measure_spread(values: Sequence[float]) -> float:
    """Return the highest value divided by the lowest one, of eight or more in their middle half."""
    ordered = sorted(values)
    if len(ordered) >= 8:
        ordered = ordered[len(ordered) // 4 : -(len(ordered) // 4)]
    return ordered[-1] / ordered[0] if ordered[0] > 0 else 1.0


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
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def format_text(rows: Iterable[Row]) -> str:
    """Format the table for a terminal."""
    return format_columns([HEAD, *(row.cells for row in rows)])


def format_columns(lines: Sequence[Sequence[str]]) -> str:
    """Align the cells of lines."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def format_markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table as Markdown."""
    table = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)
