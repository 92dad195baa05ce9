"""Documents as a table, JSON, JSON Lines, TSV or names on stdout.

stdout carries nothing but data. `json` is the bytes of the document unchanged, except for control
characters on a terminal; only the other formats parse it. Off a terminal nothing is wrapped or cut
(docs/contract.md "Command line").
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from agentctl.cli.io import current_io
from agentctl.cli.parameters import option
from agentctl.cli.show.table import Column, Columns, format_fields, format_table, print_table
from agentctl.cli.show.terminal import note
from agentctl.errors import UsageError
from agentctl.interface.requests import FULL_VIEW, SUMMARY_VIEW, RunView
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

    variable = os.environ.get("AGENTCTL_OUTPUT")
    if not variable:
        return "table" if current_io().out_is_terminal else "tsv"

    if variable not in get_args(CommonFormat):
        raise UsageError(
            f"AGENTCTL_OUTPUT is {variable!r}, which is not an output format",
            hint=f"use one of: {', '.join(get_args(CommonFormat))}",
        )
    return cast(Format, variable)


def build_output_option(formats: str) -> Any:
    """Return the option for one of these formats."""
    default = "[env: AGENTCTL_OUTPUT; default: table at a terminal, else tsv]"
    return option("--output -o", "FORMAT", f"Output format: {formats}  {default}")


OutputOption = Annotated[
    CommonFormat | None, build_output_option("table, wide, json, jsonl, tsv or name")
]
FieldsOption = Annotated[
    str | None, option("--fields", "FIELDS", "Show only these fields, such as run_id,status,error")
]


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The option `--output` of a command, and its ways to show a result."""

    output: OutputOption = None

    @property
    def format(self) -> Format:
        """The output format; UsageError as in `resolve_format`."""
        return resolve_format(self.output)

    @property
    def is_table(self) -> bool:
        """True for the formats for people."""
        return self.format in ("table", "wide")

    @property
    def run_view(self) -> RunView:
        """The view of runs that the output needs: summaries for tables, else whole records."""
        if self.format in ("json", "jsonl") or self.fields is not None:
            return FULL_VIEW
        return SUMMARY_VIEW

    @property
    def fields(self) -> str | None:
        """The option `--fields`; None without one."""
        return None

    def show_list(
        self, document: Document[Any] | Sequence[Record], columns: ColumnChoice, id_field: str
    ) -> None:
        """Write a document that is an array of records.

        Args:
            document: of the server, or records that this process built.
            columns: of the table and of TSV.
            id_field: the field that `-o name` prints.

        Raises:
            UsageError: `--fields` has a name that is no field.
        """
        document = _to_document(document)
        if self.format == "json" and self.fields is None:
            write_json(document.raw)
            return
        records, columns = self._select(document.value, columns)
        if self.format == "json":
            write_value(records)
        else:
            self.show_records(records, columns, id_field)

    def show_page(
        self, document: Document[Any], columns: ColumnChoice, id_field: str, noun: str = "rows"
    ) -> None:
        """Write a page, `{"data": [...], "meta": {...}}`, and note the cursor of the next page.

        The arguments and errors are those of `show_list`; `noun` names the rows of a list that has
        no total.
        """
        if self.format == "json" and self.fields is None:
            write_json(document.raw)
            return

        page = document.value
        records, columns = self._select(page["data"], columns)
        if self.format == "json":
            write_value({**page, "data": records})
            return

        self.show_records(records, columns, id_field)
        meta = page["meta"]
        cursor = meta.get("next_cursor")
        if not cursor:
            return

        shown = f"more {noun} exist"
        if "total_count" in meta:
            total = f"{meta['total_count']}{'+' if meta['total_is_capped'] else ''}"
            shown = f"showing {len(records)} of {total}"
        # A cursor can be longer than the line of a terminal, where no one types it.
        if self.is_table and current_io().err_is_terminal:
            note(f"{shown}; --all lists all, -o json has the cursor of the next page")
        else:
            note(f"{shown}; next page: --cursor {cursor}")

    def show_record(
        self, document: Document[Any] | Record, columns: Sequence[Column], id_field: str
    ) -> None:
        """Write a document that is one record: in tables one line for each field.

        The arguments and errors are those of `show_list`.
        """
        document = _to_document(document)
        if self.format == "json" and self.fields is None:
            write_json(document.raw)
            return

        (record,), chosen_columns = self._select([document.value], columns)
        if self.format == "json":
            write_value(record)
        elif self.is_table:
            io = current_io()
            width = io.width(io.out) if io.out_is_terminal else None
            _write_lines(format_fields(record, to_columns(chosen_columns).tsv, width))
        else:
            self.show_records([record], chosen_columns, id_field)

    def show_records(
        self,
        records: Sequence[Record],
        columns: ColumnChoice,
        id_field: str,
        *,
        heading: bool = True,
    ) -> None:
        """Write records in a format other than `json`.

        Args:
            heading: False for TSV that follows other rows.
        """
        columns = to_columns(columns)
        if self.format in ("table", "wide") and not records:
            _note_no_records(id_field)
        elif self.format == "table":
            io = current_io()
            if not io.out_is_terminal and not io.styles(io.out):
                _write_lines(format_table(records, columns.table))
                return
            hidden_names = print_table(records, columns.table, io)
            if hidden_names:
                note(f"hidden: {', '.join(hidden_names)} (-o wide shows all)")
        elif self.format == "wide":
            names = {column.name for column in columns.table}
            further_columns = [column for column in columns.tsv if column.name not in names]
            _write_lines(format_table(records, [*columns.table, *further_columns]))
        elif self.format == "tsv":
            head = "\t".join(column.name for column in columns.tsv)
            rows = ("\t".join(column.cell(record) for column in columns.tsv) for record in records)
            _write_lines([head, *rows] if heading else rows)
        elif self.format == "name":
            _write_lines(map(Column(id_field).cell, records))
        else:
            import orjson

            if records:
                write_json(b"\n".join(map(orjson.dumps, records)))

    def check_fields(self) -> None:
        """Check that the format can show some fields only."""
        if self.fields is not None and self.format in ("name", "text", "markdown"):
            raise UsageError(
                f"--fields has no meaning with -o {self.format}",
                hint="use -o table, wide, tsv, json or jsonl",
            )

    def _select(
        self, records: Sequence[Record], columns: ColumnChoice
    ) -> tuple[Sequence[Record], ColumnChoice]:
        """Return the records and the columns of `--fields`; all of them without the option."""
        if self.fields is None:
            return records, columns

        self.check_fields()
        chosen_columns = choose_columns(records, to_columns(columns), self.fields)
        if self.format in ("json", "jsonl"):
            records = [pick_values(record, chosen_columns.tsv) for record in records]
        return records, chosen_columns


@dataclass(frozen=True, slots=True)
class FieldsOutput(CommandOutput):
    """The options `--output` and `--fields`."""

    fields: FieldsOption = None


def _note_no_records(id_field: str) -> None:
    """Note that a list is empty, with its noun: `no runs` for `run_id`."""
    noun, is_id, _ = id_field.partition("_id")
    if not is_id:
        note("no results")
        return
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    note(f"no {plural}")


def _to_document(data: Document[Any] | Record | Sequence[Record]) -> Document[Any]:
    from agentctl.records.document import Document, build_document

    return data if isinstance(data, Document) else build_document(data)


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
        columns: the columns of the list without `--fields`.
        fields: the names, with commas.

    Raises:
        UsageError: a name is empty or is no field.
    """
    names = list(dict.fromkeys(name.strip() for name in fields.split(",")))
    tsv_columns = {column.name: column for column in columns.tsv}
    table_columns = {column.name: column for column in columns.table}
    record_names = [name for record in records for name in record]
    known_names = list(dict.fromkeys([*tsv_columns, *table_columns, *record_names]))

    hint = f"use: {', '.join(known_names)}"
    if not all(names):
        raise UsageError("--fields has an empty name", hint=hint)
    unknown_names = [name for name in names if name not in known_names]
    if records and unknown_names:
        raise UsageError(f"--fields has no field {unknown_names[0]!r}", hint=hint)

    # A column of this form, else the column of the other form, else the field as it is.
    plain_columns = {name: Column(name) for name in names}
    by_name_in_tsv = {**plain_columns, **table_columns, **tsv_columns}
    by_name_in_table = {**plain_columns, **tsv_columns, **table_columns}
    return Columns(
        tsv=[by_name_in_tsv[name] for name in names],
        table=[by_name_in_table[name] for name in names],
    )


def pick_values(record: Record, columns: Sequence[Column]) -> Mapping[str, Any]:
    """Return the fields of a record as JSON has them; a column that is none is computed."""
    values = dict[str, Any]()
    for column in columns:
        if column.read is not None and column.name not in record:
            values[column.name] = column.read(record)
        else:
            values[column.name] = record.get(column.name)
    return values
