"""The comparison of a part of the package with the library that it replaces.

The seed is fixed, so that a failure repeats; `AGENTCTL_TEST_SEED` names another one, and
`AGENTCTL_TEST_LONG=1` makes fifty times as many exchanges.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from types import TracebackType
from typing import Any, NamedTuple

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
SEED = int(os.environ.get("AGENTCTL_TEST_SEED", "1"))
SHOWN = 5

TOTALS = Counter[str]()
"""The comparisons of this process, with their exchanges and differences."""


def report(
    name: str, exchanges: int, differences: int = 0, *, more: str = "", seed: int = SEED
) -> None:
    """Print the numbers of a comparison and add them to the totals."""
    TOTALS.update(comparisons=1, exchanges=exchanges, differences=differences)
    print(f"\n{name}: seed {seed}, {exchanges:,} exchanges{more}, {differences:,} differences")


class Outcome(NamedTuple):
    """The result of one side: a value, or the reason of its refusal."""

    value: Any = None
    refusal: str | None = None


def attempt(work: Callable[[], Any], *refusals: type[Exception]) -> Outcome:
    """Return the outcome of a call; only exceptions of `refusals` are a refusal."""
    try:
        return Outcome(work())
    except refusals as refusal:
        return Outcome(refusal=str(getattr(refusal, "reason", refusal)) or type(refusal).__name__)


class Comparison:
    """The exchanges of one test, and those whose outcomes differ.

    Args:
        name: the part.
        stricter: the rules by which the part refuses what the library accepts: the beginning of a
            refusal, and the source of the rule.
        wider: the same for what only the part accepts: the refusal is that of the library.

    Attributes:
        chance: the source of random numbers.
        rules: how often each rule decided.
    """

    def __init__(
        self, name: str, *, stricter: Mapping[str, str] = {}, wider: Mapping[str, str] = {}
    ) -> None:
        self.name = name
        self.chance = Random(SEED)
        self.exchanges = 0
        self.accepted = 0
        self.rules = Counter[str]()
        self.differences: list[str] = []
        self._stricter = stricter
        self._wider = wider

    def rounds(self, number: int) -> range:
        """Return the rounds of the short test, or fifty times as many."""
        return range(number * 50 if LONG else number)

    def compare(self, exchange: object, own: Outcome, library: Outcome) -> None:
        """Count an exchange; `exchange` describes it if the outcomes differ."""
        self.exchanges += 1
        if not self._agree(own, library):
            text = f"{exchange!r:.2000}: own {own!r:.300}, library {library!r:.300}"
            self.differences.append(text)

    def _agree(self, own: Outcome, library: Outcome) -> bool:
        if own.refusal is None and library.refusal is None:
            self.accepted += 1
            return same(own.value, library.value)
        if own.refusal is None:
            return self._is_listed(self._wider, str(library.refusal))
        return library.refusal is not None or self._is_listed(self._stricter, own.refusal)

    def _is_listed(self, rules: Mapping[str, str], refusal: str) -> bool:
        rule = next((rule for rule in rules if refusal.startswith(rule)), None)
        if rule is not None:
            self.rules[rule] += 1
        return rule is not None

    def __enter__(self) -> Comparison:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        more = (
            f", {self.accepted:,} accepted by both, {self.rules.total():,} by one according to"
            f" {len(self.rules)} listed rules"
        )
        report(self.name, self.exchanges, len(self.differences), more=more)
        if error is None:
            assert not self.differences, "\n".join(self.differences[:SHOWN])
            unused = {*self._stricter, *self._wider} - self.rules.keys()
            assert not unused, f"rules that decided nothing: {unused}"


def same(one: object, other: object) -> bool:
    """Return True for equal values of equal types; NaN is equal to itself."""
    return repr(one) == repr(other)
