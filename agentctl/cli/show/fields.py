"""The fields that `--fields` selects, as columns and as values of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctl.cli.show.table import Column, Columns
from agentctl.errors import UsageError
from agentctl.records.kinds import Record

ColumnChoice = Sequence[Column] | Columns


def to_columns(columns: ColumnChoice) -> Columns:
    """Return the columns of a list; the same for TSV and tables if there is one sequence."""
    return columns if isinstance(columns, Columns) else Columns(columns, columns)


def choose_columns(records: Sequence[Record], columns: Columns, fields: str) -> Columns:
    """Return the columns of the fields, in their order.

    A field is a column or, if a record has it, a field of the JSON document. Without records
    every name is accepted: the fields of the document are not known then.

    Args:
        records: all records of the list.
        columns: those without `--fields`.
        fields: names separated by commas.

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
