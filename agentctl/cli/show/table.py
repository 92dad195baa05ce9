"""Tables and lists of fields for people.

In a table times are UTC to the second. Columns that are empty in every row are left out. On a
terminal the last columns that do not fit are hidden, and long text is cut or wrapped; an id never
is. Only a table on a terminal is drawn by rich, which is imported for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from agentctl.cli.io import IO
from agentctl.cli.show.terminal import display_width, escape_controls

Record = Mapping[str, Any]

COLUMN_GAP = "  "
MINIMUM_TEXT_WIDTH = 16
"""Columns of the screen that a column of text keeps at least."""

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


class Column(NamedTuple):
    """A column, and the way to read it from a record.

    Attributes:
        name: the field, and the heading in TSV.
        read: the value to show instead of the field.
        heading: the heading in tables instead of the name: `session_id` would be SESSION ID.
        look: in tables on a narrow terminal: `plain` is never cut, `text` is, `whole` is wrapped;
            all but `whole` and the first column are hidden if there is no room.
    """

    name: str
    read: Callable[[Record], object] | None = None
    heading: str = ""
    look: Literal["plain", "text", "whole"] = "plain"

    @property
    def label(self) -> str:
        """The name for people, in lower case: `session id`."""
        return (self.heading or self.name).replace("_", " ")

    def cell(self, record: Record) -> str:
        """Return the value of `record` as one printable line."""
        return _format_value(self.read(record) if self.read else record.get(self.name))

    def short(self, record: Record) -> str:
        """Return the value for people: times to the second."""
        cell = self.cell(record)
        return format_time(cell) if self.name.endswith("_at") else cell


class Columns(NamedTuple):
    """The columns of a list.

    Attributes:
        tsv: all columns, in an order that never changes.
        table: the columns by importance.
    """

    tsv: Sequence[Column]
    table: Sequence[Column]


class _Filled(NamedTuple):
    """A column that has a value in at least one row, and its cells."""

    column: Column
    cells: list[str]

    @property
    def width(self) -> int:
        return max(display_width(self.column.label), *map(display_width, self.cells))

    @property
    def minimum(self) -> int:
        plain = self.column.look == "plain"
        return self.width if plain else min(self.width, MINIMUM_TEXT_WIDTH)


def format_table(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    """Format a table of any width, without rich.

    Args:
        records: at least one.
        columns: by importance.
    """
    padded = [
        [_pad(text, filled.width) for text in (filled.column.label.upper(), *filled.cells)]
        for filled in _fill(records, columns)
    ]
    return [COLUMN_GAP.join(row).rstrip() for row in zip(*padded, strict=True)]


def print_table(records: Sequence[Record], columns: Sequence[Column], io: IO) -> list[str]:
    """Print a table on the terminal `io.out`, and return the labels of the hidden columns.

    Args:
        records: at least one.
        columns: by importance.
    """
    from rich.table import Table
    from rich.text import Text

    filled, width = _fill(records, columns), io.width(io.out)
    shown = [each for each in filled if each is filled[0] or each.column.look == "whole"]
    needed = sum(each.minimum + len(COLUMN_GAP) for each in shown) - len(COLUMN_GAP)
    for each in filled:
        more = each.minimum + len(COLUMN_GAP)
        if each not in shown and (width is None or needed + more <= width):
            shown.append(each)
            needed += more
    shown = [each for each in filled if each in shown]
    table = Table(box=None, pad_edge=False, padding=(0, len(COLUMN_GAP), 0, 0))
    for column, _ in shown:
        table.add_column(Text(column.label.upper()))
    for at, each in enumerate(shown):
        table.columns[at].min_width = each.minimum
        table.columns[at].no_wrap = each.column.look == "plain"
    looks = [_LOOKS[each.column.look] for each in shown]
    for row in zip(*(each.cells for each in shown), strict=True):
        table.add_row(*(Text(cell, **look) for cell, look in zip(row, looks, strict=True)))
    # The screen is wider than the terminal if the first column alone does not fit: ids stay whole.
    everything = sum(each.width + len(COLUMN_GAP) for each in shown)
    io.console(io.out, max(needed, width or everything)).print(table)
    return [each.column.label for each in filled if each not in shown]


_LOOKS: dict[str, dict[str, Any]] = {
    "plain": {"no_wrap": True, "overflow": "ignore"},
    "text": {"no_wrap": True, "overflow": "ellipsis"},
    "whole": {"no_wrap": False, "overflow": "fold"},
}


def format_fields(record: Record, columns: Sequence[Column]) -> list[str]:
    """Format a record as lines of name and value, without empty fields."""
    found = [(column.label, column.short(record)) for column in columns]
    filled = [(label, value) for label, value in found if value]
    widest = max((display_width(label) for label, _ in filled), default=0)
    return [f"{_pad(label, widest)}{COLUMN_GAP}{value}" for label, value in filled]


def format_time(text: str) -> str:
    """Return `2026-11-20 10:27:29Z` for a timestamp in UTC, and any other text unchanged."""
    found = _TIMESTAMP.fullmatch(text)
    return f"{found[1]} {found[2]}Z" if found else text


def _fill(records: Sequence[Record], columns: Sequence[Column]) -> list[_Filled]:
    filled = [_Filled(column, [column.short(record) for record in records]) for column in columns]
    return [each for each in filled if any(each.cells)] or filled[:1]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


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
