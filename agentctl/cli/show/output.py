"""The one renderer: documents of the port become table, JSON, JSON lines, TSV or names.

stdout carries data and nothing else. `json` is the document's own bytes; only the other forms
parse it. Nothing passes through Rich, which wraps and truncates off a terminal (contract.md 8).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from agentctl.cli.io import current_io
from agentctl.cli.show.table import Column, Columns, Record, format_fields, format_table
from agentctl.cli.show.terminal import escape_controls, note
from agentctl.errors import UsageError

if TYPE_CHECKING:
    from agentctl.records.document import Document

__all__ = [
    "Format",
    "resolve_format",
    "show_list",
    "show_page",
    "show_record",
    "write_bytes",
    "write_line",
    "write_text",
]

Format = Literal["table", "json", "jsonl", "tsv", "name"]
ColumnChoice = Sequence[Column] | Columns


def resolve_format(option: Format | None) -> Format:
    """The form of the output: `--output`, else AGENTCTL_OUTPUT, else by what stdout is.

    Raises:
        UsageFailed: AGENTCTL_OUTPUT names no form.
    """
    if option is not None:
        return option
    named = os.environ.get("AGENTCTL_OUTPUT")
    if not named:
        return "table" if current_io().out_is_terminal else "tsv"
    if named in get_args(Format):
        return cast(Format, named)
    raise UsageError(
        f"AGENTCTL_OUTPUT is {named!r}, which is not a form of output",
        hint=f"use one of: {', '.join(get_args(Format))}",
    )


def show_list(
    document: Document[Any], columns: ColumnChoice, format: Format, *, id_field: str
) -> None:
    """Write a document that is an array of records. `id_field` is what `-o name` prints of each."""
    if format == "json":
        write_bytes(document.raw)
    else:
        _show_records(document.value, columns, format, id_field)


def show_page(
    document: Document[Any], columns: ColumnChoice, format: Format, *, id_field: str
) -> None:
    """Write a page, `{"data": [...], "meta": {...}}`; a note on stderr says where it goes on."""
    if format == "json":
        write_bytes(document.raw)
        return
    page = document.value
    _show_records(page["data"], columns, format, id_field)
    cursor = page["meta"].get("next_cursor")
    if cursor:
        total = f"{page['meta']['total_count']}{'+' if page['meta']['total_is_capped'] else ''}"
        note(f"{len(page['data'])} of {total}; the next ones: --cursor {cursor}")


def show_record(
    document: Document[Any], columns: Sequence[Column], format: Format, *, id_field: str
) -> None:
    """Write a document that is one record: a field a line in tables, else as a list of one."""
    if format == "json":
        write_bytes(document.raw)
    elif format == "table":
        _write_lines(format_fields(document.value, columns))
    else:
        _show_records([document.value], columns, format, id_field)


def write_bytes(data: bytes) -> None:
    """Write data and a newline, byte for byte, at once."""
    out = current_io().out
    out.flush()
    out.buffer.write(data + b"\n")
    out.buffer.flush()


def write_line(text: str) -> None:
    """Write a line of data; what the encoding of stdout does not have is written out."""
    write_bytes(text.encode(current_io().out.encoding or "utf-8", "backslashreplace"))


def write_text(text: str) -> None:
    """Write text of several lines as it is; to a terminal without what a terminal obeys."""
    io = current_io()
    safe = escape_controls(text, lines=True) if io.out_is_terminal else text
    io.out.flush()
    io.out.buffer.write(safe.encode(io.out.encoding or "utf-8", "backslashreplace"))
    io.out.buffer.flush()


def _show_records(
    records: Sequence[Record], columns: ColumnChoice, format: Format, id_field: str
) -> None:
    if not isinstance(columns, Columns):
        columns = Columns(columns, columns)
    if format == "table":
        _write_table(records, columns.table)
    elif format == "tsv":
        _write_tsv(records, columns.tsv)
    elif format == "name":
        name = Column(id_field)
        _write_lines(name.cell(record) for record in records)
    else:
        import orjson

        for record in records:
            write_bytes(orjson.dumps(record))


def _write_tsv(records: Sequence[Record], columns: Sequence[Column]) -> None:
    head = "\t".join(column.name for column in columns)
    rows = ("\t".join(column.cell(record) for column in columns) for record in records)
    _write_lines([head, *rows])


def _write_table(records: Sequence[Record], columns: Sequence[Column]) -> None:
    if not records:
        note("nothing to show")
        return
    io = current_io()
    room = io.width(io.out) if io.out_is_terminal else None
    made = format_table(records, columns, room)
    _write_lines(made.lines)
    if made.left_out:
        note(f"no room for {', '.join(made.left_out)}; -o tsv has every column")


def _write_lines(lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        write_line(text)
