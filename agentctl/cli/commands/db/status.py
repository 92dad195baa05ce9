"""`agentctl db status`: the state, schema version and size of each database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentctl.cli.databases import OnlyDatabase, select_databases
from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import resolve_format, show_list
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import adding_config, run_until_done
from agentctl.records.text import format_bytes

if TYPE_CHECKING:
    from agentctl.service.databases import DatabaseStatus


def _format_count(record: Mapping[str, Any], name: str) -> str:
    count = record[name]
    return "" if count is None else f"{'about ' if record['estimated'] else ''}{count}"


def _format_size(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


_COLUMNS = Columns(
    tsv=[
        *plain_columns("db_id", "engine", "state", "schema", "newest", "pending"),
        *plain_columns("bytes", "wal_bytes", "sessions", "runs", "estimated", "url", "problem"),
        *plain_columns("compatible_from"),
    ],
    table=[
        Column("db_id", heading="id"),
        Column("state"),
        Column("engine"),
        Column(
            "schema",
            lambda record: (
                "" if record["schema"] is None else f"{record['schema']} of {record['newest']}"
            ),
        ),
        Column("compatible_from", heading="works from"),
        Column("pending", lambda record: ", ".join(record["pending"]), look="text"),
        Column("bytes", lambda record: _format_size(record["bytes"]), heading="size"),
        Column("wal_bytes", lambda record: _format_size(record["wal_bytes"]), heading="log"),
        Column("sessions", lambda record: _format_count(record, "sessions")),
        Column("runs", lambda record: _format_count(record, "runs")),
        Column("url", look="text"),
    ],
)


def show_status(config: Config = None, db: OnlyDatabase = None, output: Output = None) -> None:
    """Show the state, schema version, pending migrations and size of each database.

    A database with a schema that is newer than this version and compatible with it is `ahead`.
    Exit code 7 if a database is missing or cannot be used, else 1 if a schema version is too old or
    too new.
    """
    output_format = resolve_format(output)
    entries = select_databases(config, db)
    statuses: list[DatabaseStatus] = []

    async def look() -> None:
        from agentctl.service.databases import read_database_status

        for entry in entries:
            async with showing_progress(f"inspecting {entry.id}"):
                statuses.append(await read_database_status(entry))

    run_until_done(look())
    records = [status.record() for status in statuses]
    show_list(records, _COLUMNS, output_format, id_field="db_id")
    failures = [status.failure for status in statuses if status.failure is not None]
    for failure in sorted(failures, key=lambda failure: -failure.exit_code)[:1]:
        with adding_config(config):
            raise failure
