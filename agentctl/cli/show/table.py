"""Tables and lists of fields for people.

In a table times are UTC to the second. Columns that are empty in every row are left out. On a
terminal the last columns that do not fit are hidden, and long text is cut or wrapped; an id never
is. Only a table on a terminal is drawn by rich, which is imported for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from agentctl.cli.io import IO
from agentctl.cli.show.terminal import display_width
from agentctl.records.kinds import Record
from agentctl.records.text import escape_controls

COLUMN_GAP = "  "
MINIMUM_TEXT_WIDTH = 16
"""Columns of the screen that a column of text keeps at least."""

MINIMUM_KEPT_WIDTH = 24
"""The same of a column that is never hidden: an error code."""

SHORT_ID = 13
"""Least characters of a shortened id: those with the milliseconds of a UUIDv7."""

UUID_LENGTH = 36
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LINE_END = re.compile(" +$", re.MULTILINE)
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")

_LOOKS: dict[str, dict[str, Any]] = {
    "plain": {"no_wrap": True, "overflow": "ignore"},
    "text": {"no_wrap": True, "overflow": "ellipsis"},
    "whole": {"no_wrap": False, "overflow": "fold"},
    "id": {"no_wrap": True, "overflow": "ignore"},
}


class Column(NamedTuple):
    """A column, and the way to read it from a record."""

    name: str
    """The field, and the heading in TSV."""

    read: Callable[[Record], object] | None = None
    """The value to show instead of the field."""

    heading: str = ""
    """The heading in tables instead of the name: `session_id` would be SESSION ID."""

    look: Literal["plain", "text", "whole", "id"] = "plain"
    """Its form in tables on a narrow terminal.

    `plain` is never cut, `text` is, `whole` is wrapped, `id` becomes its least unique prefix. All
    but `whole` and the first column are hidden if there is no room.
    """

    right: bool = False

    keep: bool = False
    """Never hidden."""

    style: Callable[[Record], str] | None = None
    """Returns the style of rich for a cell."""

    @property
    def label(self) -> str:
        """The name for people, in lower case: `session id`."""
        return (self.heading or self.name).replace("_", " ")

    def cell(self, record: Record) -> str:
        """Return the value of `record` as one printable line."""
        value = self.read(record) if self.read else record.get(self.name)
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

    def short(self, record: Record) -> str:
        """Return the value for people: times to the second."""
        cell = self.cell(record)
        return format_time(cell) if self.name == "at" or self.name.endswith("_at") else cell


def plain_columns(*names: str) -> list[Column]:
    """Return a column for each field, with its name as the heading."""
    return [Column(name) for name in names]


class Columns(NamedTuple):
    """The columns of a list."""

    tsv: Sequence[Column]
    """All columns, in an order that never changes."""

    table: Sequence[Column]
    """The columns by importance."""


class _Filled(NamedTuple):
    """A column that has a value in at least one row, and its cells."""

    column: Column
    cells: list[str]
    styles: list[str]

    @property
    def width(self) -> int:
        return max(display_width(self.column.label), *map(display_width, self.cells))

    @property
    def minimum(self) -> int:
        if self.column.look in ("plain", "id"):
            return self.width
        return min(self.width, MINIMUM_KEPT_WIDTH if self.column.keep else MINIMUM_TEXT_WIDTH)

    @property
    def is_kept(self) -> bool:
        return self.column.keep or self.column.look == "whole"

    def pad(self, text: str) -> str:
        space = " " * (self.width - display_width(text))
        return space + text if self.column.right else text + space


def format_table(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    """Format a table of any width, without rich."""
    padded = [
        [filled.pad(text) for text in (filled.column.label.upper(), *filled.cells)]
        for filled in _fill(records, columns)
    ]
    return [COLUMN_GAP.join(row).rstrip() for row in zip(*padded, strict=True)]


def print_table(records: Sequence[Record], columns: Sequence[Column], io: IO) -> list[str]:
    """Print a table on the terminal `io.out`, and return the labels of the hidden columns."""
    from rich.table import Table
    from rich.text import Text

    filled = _fill(records, columns, short=True)
    width = io.width(io.out)
    visible = [part for part in filled if part is filled[0] or part.is_kept]
    needed = sum(part.minimum + len(COLUMN_GAP) for part in visible) - len(COLUMN_GAP)
    for part in filled:
        more = part.minimum + len(COLUMN_GAP)
        if part not in visible and (width is None or needed + more <= width):
            visible.append(part)
            needed += more
    visible = [part for part in filled if part in visible]
    table = Table(box=None, pad_edge=False, padding=(0, len(COLUMN_GAP), 0, 0))
    cells = []
    for part in visible:
        column = part.column
        table.add_column(
            Text(column.label.upper()),
            min_width=part.minimum,
            no_wrap=column.look in ("plain", "id"),
            justify="right" if column.right else "left",
        )
        texts = map(part.pad, part.cells) if column.right else part.cells
        styled = zip(texts, part.styles, strict=True)
        cells.append([Text(text, style=style, **_LOOKS[column.look]) for text, style in styled])
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    # The screen is wider than the terminal if the first column alone does not fit: ids stay whole.
    everything = sum(part.width + len(COLUMN_GAP) for part in visible)
    console = io.console(io.out, max(needed, width or everything))
    with console.capture() as captured:
        console.print(table)
    io.out.write(_LINE_END.sub("", captured.get()))
    return [part.column.label for part in filled if part not in visible]


def format_fields(record: Record, columns: Sequence[Column], width: int | None = None) -> list[str]:
    """Format a record as lines of name and value, without empty fields.

    Args:
        width: columns of the terminal; a longer value is wrapped below itself. None: any.
    """
    cells = [(column.label, column.short(record)) for column in columns]
    filled = [(label, value) for label, value in cells if value]
    widest = max((display_width(label) for label, _ in filled), default=0)
    lines = []
    for label, value in filled:
        head = label + " " * (widest - display_width(label)) + COLUMN_GAP
        lines += wrap_with_indent(head, value, width)
    return lines


def wrap_with_indent(head: str, text: str, width: int | None) -> list[str]:
    """Return the lines of a text after a head; following lines are below the text.

    A word that is longer than a line is broken, a path before a `/`. With less than
    `MINIMUM_TEXT_WIDTH` columns for the text nothing is wrapped.
    """
    indent = display_width(head)
    room = (width or 0) - indent
    if room < MINIMUM_TEXT_WIDTH or display_width(text) <= room:
        return [head + text]

    lines = []
    line = ""
    for word in text.split(" "):
        longer_line = f"{line} {word}" if line else word
        if display_width(longer_line) <= room:
            line = longer_line
            continue

        if line:
            lines.append(line)
        line = word
        while display_width(line) > room:
            # A word that is longer than a line.
            length = _count_fitting(line, room)
            length = max(line.rfind("/", 1, length + 1), 0) or length
            lines.append(line[:length])
            line = line[length:]
    lines.append(line)

    return [head + lines[0], *(" " * indent + line for line in lines[1:])]


def _count_fitting(text: str, width: int) -> int:
    used = 0
    for at, character in enumerate(text):
        used += display_width(character)
        if used > width:
            return max(at, 1)
    return len(text)


def format_time(text: str) -> str:
    """Return `2026-11-20 10:27:29Z` for a timestamp in UTC, and any other text unchanged."""
    match = _TIMESTAMP.fullmatch(text)
    return f"{match[1]} {match[2]}Z" if match else text


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """Return each UUID as its least prefix that is unique among `ids`; other ids unchanged."""
    lengths = range(SHORT_ID, UUID_LENGTH)
    distinct = sorted({whole for whole in ids if _UUID.fullmatch(whole)})
    short = {}
    for at, whole in enumerate(distinct):
        near = distinct[max(0, at - 1) : at] + distinct[at + 1 : at + 2]
        unique = (n for n in lengths if not any(other.startswith(whole[:n]) for other in near))
        short[whole] = whole[: next(unique, UUID_LENGTH)]
    return [short.get(whole, whole) for whole in ids]


def _fill(
    records: Sequence[Record], columns: Sequence[Column], *, short: bool = False
) -> list[_Filled]:
    filled = []
    for column in columns:
        cells = [column.short(record) for record in records]
        cells = shorten_ids(cells) if short and column.look == "id" else cells
        styles = [column.style(record) if column.style else "" for record in records]
        filled.append(_Filled(column, cells, styles))
    return [part for part in filled if any(part.cells)] or filled[:1]
