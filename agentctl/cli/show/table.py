"""Records for people: a table, or a field a line. What they see is short, and never wrong.

In a table times are UTC to the second, columns that are empty in every row are left out, and on a
terminal so are the last ones that do not fit. An id is never cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentctl.cli.show.terminal import display_width, escape_controls, truncate

__all__ = ["Column", "Columns", "Record", "Table", "format_fields", "format_table", "format_time"]

Record = Mapping[str, Any]

COLUMN_GAP = "  "
MINIMUM_TEXT_WIDTH = 16
"""Columns of the screen that text is not cut below."""

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


class Column(NamedTuple):
    """A column, and how to read it from a record.

    Attributes:
        name: the field, which is also its heading in TSV.
        read: what to show instead of the field of that name.
        heading: what tables say instead of the name: `session_id` would be SESSION ID.
        look: in tables `plain`, left out where there is no room for it; `text`, cut where there is
            not; `whole`, never either.
    """

    name: str
    read: Callable[[Record], object] | None = None
    heading: str = ""
    look: Literal["plain", "text", "whole"] = "plain"

    @property
    def label(self) -> str:
        """What it is called where people read: `session id`."""
        return (self.heading or self.name).replace("_", " ")

    def cell(self, record: Record) -> str:
        """What `record` has in this column, as one printable line."""
        return _format_value(self.read(record) if self.read else record.get(self.name))

    def short(self, record: Record) -> str:
        """The same for people."""
        cell = self.cell(record)
        return format_time(cell) if self.name.endswith("_at") else cell


class Columns(NamedTuple):
    """Columns of a list: those of TSV, whose order stays, and those of tables, first things first.

    Attributes:
        tsv: all of them.
        table: by importance.
    """

    tsv: Sequence[Column]
    table: Sequence[Column]


class Table(NamedTuple):
    """A table: its lines, and the labels of the columns for which there was no room."""

    lines: list[str]
    left_out: list[str]


def format_table(records: Sequence[Record], columns: Sequence[Column], room: int | None) -> Table:
    """Lay records out under headings.

    Args:
        records: at least one.
        columns: by importance.
        room: columns of the screen, None: any number.
    """
    laid = [_Laid(column, [column.short(record) for record in records]) for column in columns]
    filled = [each for each in laid if any(each.cells)] or laid[:1]
    _fit(filled, room)
    kept = [each.lines() for each in filled if each.size]
    lines = [COLUMN_GAP.join(row).rstrip() for row in zip(*kept, strict=True)]
    return Table(lines, [each.column.label for each in filled if not each.size])


def format_fields(record: Record, columns: Sequence[Column]) -> list[str]:
    """A record as lines of name and value, without those that are empty."""
    found = [(column.label, column.short(record)) for column in columns]
    filled = [(label, value) for label, value in found if value]
    widest = max((display_width(label) for label, _ in filled), default=0)
    return [f"{_padded(label, widest)}{COLUMN_GAP}{value}" for label, value in filled]


@dataclass(slots=True)
class _Laid:
    """A column of a table: its cells, and how wide it is to be; 0: there is no room for it."""

    column: Column
    cells: list[str]
    size: int = 0

    def wanted(self) -> int:
        return max(display_width(self.column.label), *map(display_width, self.cells))

    def least(self) -> int:
        return (
            min(self.wanted(), MINIMUM_TEXT_WIDTH) if self.column.look == "text" else self.wanted()
        )

    def lines(self) -> list[str]:
        return [_padded(text, self.size) for text in (self.column.label.upper(), *self.cells)]


def format_time(text: str) -> str:
    """`2026-11-20 10:27:29Z` for a time of the wire to the microsecond; other text as it is."""
    found = _TIMESTAMP.fullmatch(text)
    return f"{found[1]} {found[2]}Z" if found else text


def _fit(filled: Sequence[_Laid], room: int | None) -> None:
    """Give each column its size: first what it needs at least, then of the rest what it wants."""
    free = None if room is None else room + len(COLUMN_GAP)
    for each in filled:
        needed = each.least() + len(COLUMN_GAP)
        must = each is filled[0] or each.column.look == "whole"
        each.size = each.least() if free is None or must or needed <= free else 0
        if free is not None and each.size:
            free -= needed
    for each in filled:
        missing = each.wanted() - each.size if each.size else 0
        more = missing if free is None else min(max(free, 0), missing)
        each.size += more
        free = None if free is None else free - more


def _padded(text: str, columns: int) -> str:
    shown = text if display_width(text) <= columns else truncate(text, columns)
    return shown + " " * (columns - display_width(shown))


def _format_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    import orjson

    return escape_controls(orjson.dumps(value).decode())
