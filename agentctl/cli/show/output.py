"""Documents as a table, JSON, JSON Lines, TSV or names on stdout.

stdout carries nothing but data. `json` is the bytes of the document unchanged, except for control
characters on a terminal; only the other formats parse it. Off a terminal nothing is wrapped or cut
(docs/contract.md "Command line").
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from agentctl.cli.io import current_io
from agentctl.cli.show.table import Column, Columns, format_fields, format_table, print_table
from agentctl.cli.show.terminal import note
from agentctl.errors import UsageError
from agentctl.records.kinds import Record
from agentctl.records.text import escape_controls, escape_json_controls

if TYPE_CHECKING:
    from agentctl.records.document import Document


CommonFormat = Literal["table", "wide", "json", "jsonl", "tsv", "name"]
"""The formats of every command."""

Format = Literal[CommonFormat, "text", "markdown"]
"""The formats of a command with a transcript too, which is also the table of that command."""

ColumnChoice = Sequence[Column] | Columns


def resolve_format(option: Format | None) -> Format:
    """Return the output format: `--output`, else AGENTCTL_OUTPUT, else by the kind of stdout.

    Raises:
        UsageError: AGENTCTL_OUTPUT is not a format.
    """
    if option is not None:
        return option
    named = os.environ.get("AGENTCTL_OUTPUT")
    if not named:
        return "table" if current_io().out_is_terminal else "tsv"
    if named in get_args(CommonFormat):
        return cast(Format, named)
    raise UsageError(
        f"AGENTCTL_OUTPUT is {named!r}, which is not an output format",
        hint=f"use one of: {', '.join(get_args(CommonFormat))}",
    )


def show_list(
    document: Document[Any] | Sequence[Record],
    columns: ColumnChoice,
    format: Format,
    *,
    id_field: str,
    fields: str | None = None,
) -> None:
    """Write a document that is an array of records.

    Args:
        document: of the server, or records that this process built.
        columns: of the table and of TSV.
        format: the output format.
        id_field: the field that `-o name` prints.
        fields: names separated by commas, the only fields to show; None for all.

    Raises:
        UsageError: `fields` has a name that is no field.
    """
    document = _to_document(document)
    if format == "json" and fields is None:
        write_json(document.raw)
        return
    records, columns = _select(document.value, columns, format, fields)
    if format == "json":
        write_value(records)
    else:
        show_records(records, columns, format, id_field)


def show_page(
    document: Document[Any],
    columns: ColumnChoice,
    format: Format,
    *,
    id_field: str,
    fields: str | None = None,
) -> None:
    """Write a page, `{"data": [...], "meta": {...}}`, and note the cursor of the next page.

    The arguments and errors are those of `show_list`.
    """
    if format == "json" and fields is None:
        write_json(document.raw)
        return
    page = document.value
    records, columns = _select(page["data"], columns, format, fields)
    if format == "json":
        write_value({**page, "data": records})
        return
    show_records(records, columns, format, id_field)
    cursor = page["meta"].get("next_cursor")
    if cursor:
        total = f"{page['meta']['total_count']}{'+' if page['meta']['total_is_capped'] else ''}"
        note(f"showing {len(records)} of {total}; next page: --cursor {cursor}")


def show_record(
    document: Document[Any] | Record,
    columns: Sequence[Column],
    format: Format,
    *,
    id_field: str,
    fields: str | None = None,
) -> None:
    """Write a document that is one record: in tables one line for each field.

    The arguments and errors are those of `show_list`.
    """
    document = _to_document(document)
    if format == "json" and fields is None:
        write_json(document.raw)
        return
    (record,), chosen = _select([document.value], columns, format, fields)
    if format == "json":
        write_value(record)
    elif format in ("table", "wide"):
        io = current_io()
        width = io.width(io.out) if io.out_is_terminal else None
        _write_lines(format_fields(record, to_columns(chosen).tsv, width))
    else:
        show_records([record], chosen, format, id_field)


def _to_document(data: Document[Any] | Record | Sequence[Record]) -> Document[Any]:
    from agentctl.records.document import Document, build_document

    return data if isinstance(data, Document) else build_document(data)


def _select(
    records: Sequence[Record], columns: ColumnChoice, format: Format, fields: str | None
) -> tuple[Sequence[Record], ColumnChoice]:
    if fields is None:
        return records, columns
    check_fields(format, fields)
    chosen = choose_columns(records, to_columns(columns), fields)
    if format in ("json", "jsonl"):
        records = [pick_values(record, chosen.tsv) for record in records]
    return records, chosen


def check_fields(format: Format, fields: str | None) -> None:
    """Check that a format can show some fields only.

    Raises:
        UsageError: it cannot.
    """
    if fields is not None and format in ("name", "text", "markdown"):
        raise UsageError(
            f"--fields has no meaning with -o {format}",
            hint="use -o table, wide, tsv, json or jsonl",
        )


def write_value(value: object) -> None:
    """Write a value as JSON and a newline."""
    import orjson

    write_json(orjson.dumps(value))


def write_json(data: bytes) -> None:
    """Write JSON and a newline; on a terminal, control characters are escaped as `\\u009b`.

    JSON has no control characters outside of its texts but white space, and inside of them the
    result means the same. Bytes that are not UTF-8, which JSON excludes, become `\\xff`.
    """
    if current_io().out_is_terminal:
        text = escape_json_controls(data.decode("utf-8", "backslashreplace"))
        encoding = current_io().out.encoding or "utf-8"
        try:
            data = text.encode(encoding)
        except UnicodeEncodeError:
            text = escape_json_controls(text, ascii_only=True)
            data = text.encode(encoding, "backslashreplace")
    _write(data, b"\n")


def write_bytes(data: bytes) -> None:
    """Write a part of a response; on a terminal, control characters are escaped."""
    if current_io().out_is_terminal:
        data = _encode(data.decode("utf-8", "backslashreplace"))
    _write(data)


def write_line(text: str) -> None:
    """Write a line of data; characters that stdout cannot encode are escaped."""
    _write(_encode(text), b"\n")


def write_text(text: str) -> None:
    """Write text of several lines; on a terminal control characters are escaped."""
    _write(_encode(text))


def _encode(text: str) -> bytes:
    io = current_io()
    safe = escape_controls(text, lines=True) if io.out_is_terminal else text
    return safe.encode(io.out.encoding or "utf-8", "backslashreplace")


def _write(*parts: bytes) -> None:
    out = current_io().out
    out.flush()
    out.buffer.write(b"".join(parts))
    out.buffer.flush()


def show_records(
    records: Sequence[Record],
    columns: ColumnChoice,
    format: Format,
    id_field: str,
    *,
    heading: bool = True,
) -> None:
    """Write records in a format other than `json`.

    Args:
        heading: False for TSV that follows other rows.
    """
    columns = to_columns(columns)
    if format in ("table", "wide") and not records:
        noun, is_id, _ = id_field.partition("_id")
        plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
        note(f"no {plural}" if is_id else "no results")
    elif format == "table":
        io = current_io()
        if not io.out_is_terminal and not io.styles(io.out):
            _write_lines(format_table(records, columns.table))
        elif hidden := print_table(records, columns.table, io):
            note(f"hidden: {', '.join(hidden)} (-o wide shows all)")
    elif format == "wide":
        names = {column.name for column in columns.table}
        rest = [column for column in columns.tsv if column.name not in names]
        _write_lines(format_table(records, [*columns.table, *rest]))
    elif format == "tsv":
        head = "\t".join(column.name for column in columns.tsv)
        rows = ("\t".join(column.cell(record) for column in columns.tsv) for record in records)
        _write_lines([head, *rows] if heading else rows)
    elif format == "name":
        _write_lines(map(Column(id_field).cell, records))
    else:
        import orjson

        if records:
            write_json(b"\n".join(map(orjson.dumps, records)))


def _write_lines(lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        write_line(text)


def to_columns(columns: ColumnChoice) -> Columns:
    """Return the columns of a list; the same for TSV and tables if there is one sequence."""
    return columns if isinstance(columns, Columns) else Columns(columns, columns)


def choose_columns(records: Sequence[Record], columns: Columns, fields: str) -> Columns:
    """Return the columns of the fields, in their order.

    A field is a column or, if a record has it, a field of the JSON document. Without records
    every name is accepted: the fields of the document are not known then.

    Args:
        columns: those without `--fields`.

    Raises:
        UsageError: a name is empty or is no field.
    """
    names = list(dict.fromkeys(name.strip() for name in fields.split(",")))
    tsv = {column.name: column for column in columns.tsv}
    table = {column.name: column for column in columns.table}
    known = list(dict.fromkeys([*tsv, *table, *(name for record in records for name in record)]))
    hint = f"use: {', '.join(known)}"
    if not all(names):
        raise UsageError("--fields has an empty name", hint=hint)
    unknown = [name for name in names if name not in known]
    if records and unknown:
        raise UsageError(f"--fields has no field {unknown[0]!r}", hint=hint)
    plain = {name: Column(name) for name in names}
    return Columns(
        tsv=[{**plain, **table, **tsv}[name] for name in names],
        table=[{**plain, **tsv, **table}[name] for name in names],
    )


def pick_values(record: Record, columns: Sequence[Column]) -> Mapping[str, Any]:
    """Return the fields of a record as JSON has them; a column that is none is computed."""
    return {
        column.name: column.read(record)
        if column.read is not None and column.name not in record
        else record.get(column.name)
        for column in columns
    }
