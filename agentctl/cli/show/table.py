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
"""The space between two columns."""

MINIMUM_TEXT_WIDTH = 16
"""Minimum width of a column of text, in columns of the screen."""

MINIMUM_KEPT_WIDTH = 24
"""Minimum width of a column that is never hidden: the length of an error code."""

SHORT_ID = 13
"""Minimum number of characters of a shortened id: they have the milliseconds of a UUIDv7."""

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
    """True to align the cells at the right."""

    keep: bool = False
    """True for a column that is never hidden."""

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
        is_time = self.name == "at" or self.name.endswith("_at")
        return format_time(cell) if is_time else cell


def plain_columns(*names: str) -> list[Column]:
    """Return a column for each field, with its name as the heading."""
    return [Column(name) for name in names]


class Columns(NamedTuple):
    """The columns of a list."""

    tsv: Sequence[Column]
    """All columns, in an order that never changes."""

    table: Sequence[Column]
    """The columns by importance."""


class _FilledColumn(NamedTuple):
    """A column that has a value in at least one row, and its cells."""

    column: Column
    cells: list[str]
    styles: list[str]

    @property
    def width(self) -> int:
        """The columns of the screen that its widest cell needs."""
        return max(display_width(self.column.label), *map(display_width, self.cells))

    @property
    def minimum_width(self) -> int:
        """The columns of the screen that it needs at least; longer text is cut or wrapped."""
        if self.column.look in ("plain", "id"):
            return self.width
        if self.column.keep:
            return min(self.width, MINIMUM_KEPT_WIDTH)
        return min(self.width, MINIMUM_TEXT_WIDTH)

    @property
    def is_kept(self) -> bool:
        """True if it is shown also without room for it."""
        return self.column.keep or self.column.look == "whole"

    def pad(self, text: str) -> str:
        """Return a text of the column with spaces to its whole width."""
        space = " " * (self.width - display_width(text))
        return space + text if self.column.right else text + space


def format_table(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    """Format a table of any width, without rich."""
    padded_columns = list[list[str]]()
    for filled in _fill(records, columns):
        texts = [filled.column.label.upper(), *filled.cells]
        padded_columns.append([filled.pad(text) for text in texts])
    return [COLUMN_GAP.join(row).rstrip() for row in zip(*padded_columns, strict=True)]


def print_table(records: Sequence[Record], columns: Sequence[Column], io: IO) -> list[str]:
    """Print a table on the terminal `io.out`, and return the labels of the hidden columns."""
    from rich.table import Table
    from rich.text import Text

    filled_columns = _fill(records, columns, short=True)
    width = io.width(io.out)
    visible = _choose_visible(filled_columns, width)

    table = Table(box=None, pad_edge=False, padding=(0, len(COLUMN_GAP), 0, 0))
    cells_by_column = []
    for filled in visible:
        column = filled.column
        table.add_column(
            Text(column.label.upper()),
            min_width=filled.minimum_width,
            no_wrap=column.look in ("plain", "id"),
            justify="right" if column.right else "left",
        )

        texts = map(filled.pad, filled.cells) if column.right else filled.cells
        look = _LOOKS[column.look]
        cells_by_column.append(
            [
                Text(text, style=style, **look)
                for text, style in zip(texts, filled.styles, strict=True)
            ]
        )

    for row in zip(*cells_by_column, strict=True):
        table.add_row(*row)

    # The screen is wider than the terminal if the first column alone does not fit: ids stay whole.
    minimum_width = _sum_minimum_widths(visible)
    full_width = sum(filled.width + len(COLUMN_GAP) for filled in visible)
    console = io.console(io.out, max(minimum_width, width or full_width))
    with console.capture() as captured:
        console.print(table)
    io.out.write(_LINE_END.sub("", captured.get()))
    return [filled.column.label for filled in filled_columns if filled not in visible]


def _choose_visible(
    filled_columns: Sequence[_FilledColumn], width: int | None
) -> list[_FilledColumn]:
    """Return the columns that fit, in their order.

    Args:
        width: columns of the terminal; None if it is not known: then all columns fit.
    """
    # The first column, which names the row, and those that are kept.
    visible = [filled for filled in filled_columns if filled is filled_columns[0] or filled.is_kept]
    for filled in filled_columns:
        if filled not in visible:
            needed_width = _sum_minimum_widths([*visible, filled])
            if width is None or needed_width <= width:
                visible.append(filled)
    return [filled for filled in filled_columns if filled in visible]


def _sum_minimum_widths(columns: Sequence[_FilledColumn]) -> int:
    gaps = len(COLUMN_GAP) * (len(columns) - 1)
    return sum(filled.minimum_width for filled in columns) + gaps


def format_fields(record: Record, columns: Sequence[Column], width: int | None = None) -> list[str]:
    """Format a record as lines of name and value, without empty fields.

    Args:
        width: columns of the terminal; a longer value is wrapped below itself. None: any.
    """
    fields = list[tuple[str, str]]()
    for column in columns:
        text = column.short(record)
        if text:
            fields.append((column.label, text))

    label_width = max((display_width(label) for label, _ in fields), default=0)
    lines = []
    for label, text in fields:
        head = label + " " * (label_width - display_width(label)) + COLUMN_GAP
        lines += wrap_with_indent(head, text, width)
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
    """Return the number of characters of a text that fit into a width, at least one."""
    used_width = 0
    for index, character in enumerate(text):
        used_width += display_width(character)
        if used_width > width:
            return max(index, 1)
    return len(text)


def format_time(text: str) -> str:
    """Return `2026-11-20 10:27:29Z` for a timestamp in UTC, and any other text unchanged."""
    match = _TIMESTAMP.fullmatch(text)
    return f"{match[1]} {match[2]}Z" if match else text


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """Return each UUID as its shortest prefix that is unique among `ids`; other ids unchanged."""
    sorted_ids = sorted({text for text in ids if _UUID.fullmatch(text)})
    prefixes = dict[str, str]()
    for index, full_id in enumerate(sorted_ids):
        # In the order of the alphabet a neighbour has the longest common prefix.
        neighbours = sorted_ids[max(0, index - 1) : index] + sorted_ids[index + 1 : index + 2]
        length = SHORT_ID
        while length < UUID_LENGTH and any(
            neighbour.startswith(full_id[:length]) for neighbour in neighbours
        ):
            length += 1
        prefixes[full_id] = full_id[:length]
    return [prefixes.get(text, text) for text in ids]


def _fill(
    records: Sequence[Record], columns: Sequence[Column], *, short: bool = False
) -> list[_FilledColumn]:
    """Return the columns that have a value; the first one if no column has any.

    Args:
        short: True to shorten ids.
    """
    filled_columns = []
    for column in columns:
        cells = [column.short(record) for record in records]
        if short and column.look == "id":
            cells = shorten_ids(cells)
        styles = [column.style(record) if column.style else "" for record in records]
        filled_columns.append(_FilledColumn(column, cells, styles))
    return [filled for filled in filled_columns if any(filled.cells)] or filled_columns[:1]
