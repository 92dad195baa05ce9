"""What a key may hold, beyond its type: the words stand in refusals and on the reference page."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Form", "Range", "Refers", "Rule", "Secret"]


class Range(NamedTuple):
    """A number from `low` to `high`, both included."""

    low: float
    high: float

    def allows(self, value: object) -> bool:
        """Whether `value` lies inside; never for NaN."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def words(self) -> str:
        """The bounds, to stand behind "a number"."""
        return f"from {self.low} to {self.high}"


class Form(NamedTuple):
    """A text that matches `pattern` as a whole; `words` say what that is."""

    pattern: str
    words: str

    def allows(self, value: object) -> bool:
        """Whether `value` is such a text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


class Refers(NamedTuple):
    """The id of an entry of one of these tables. The loader checks it when all tables are read."""

    first: str
    second: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are looked into."""
        return tuple(table for table in self if table)

    @property
    def words(self) -> str:
        """The tables as the file has them."""
        return " or ".join(f"[[{table}]]" for table in self.tables)


class Secret(NamedTuple):
    """A value that no message repeats; when `masked`, `config show` does not show it either."""

    masked: bool = True


Rule = Range | Form | Refers | Secret
