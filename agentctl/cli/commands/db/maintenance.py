"""`agentctl db status`, `migrate` and `index`: the schema and content of databases."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agentctl.cli.options import AllDatabases
from agentctl.cli.parameters import flag
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import adding_config
from agentctl.errors import BadRequest
from agentctl.records.text import format_bytes, format_count
from agentctl.records.times import format_span

if TYPE_CHECKING:
    from agentctl.admin.databases import DatabaseStatus, MigrationPlan
    from agentctl.config.settings import Database, Settings
    from agentctl.store.schema import Migration

_STATUS = Columns(
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

_MIGRATIONS = Columns(
    tsv=plain_columns("db_id", "migration", "outcome", "statements"),
    table=[
        *plain_columns("db_id", "migration", "outcome"),
        Column("statements", lambda record: "; ".join(record["statements"]), look="text"),
    ],
)

_INDEXED = plain_columns("db_id", "tokenizer", "sessions", "added")


def _format_count(record: Mapping[str, Any], name: str) -> str:
    count = record[name]
    if count is None:
        return ""
    return f"about {count}" if record["estimated"] else str(count)


def _format_size(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


async def show_status(out: CommandOutput, chosen: AllDatabases) -> None:
    """Show the state, schema version, pending migrations and size of each database.

    A database with a schema that is newer than this version and compatible with it is `ahead`.
    Exit code 7 if a database is missing or cannot be used, else 1 if a schema version is too old or
    too new.
    """
    from agentctl.admin.databases import read_database_status

    statuses: list[DatabaseStatus] = []
    for entry in chosen.load()[1]:
        async with showing_progress(f"inspecting {entry.id}"):
            statuses.append(await read_database_status(entry))
    out.show_list([status.record() for status in statuses], _STATUS, "db_id")
    failures = [status.failure for status in statuses if status.failure is not None]
    for failure in sorted(failures, key=lambda failure: -failure.exit_code)[:1]:
        with adding_config(chosen.config):
            raise failure


async def migrate(
    out: CommandOutput,
    chosen: AllDatabases,
    dry_run: bool = flag("--dry-run", "List pending migrations without applying them"),
    finish: bool = flag("--finish", "Finish the upgrade; earlier versions stop working"),
) -> None:
    """Apply pending migrations; create missing databases.

    Each migration is applied completely or not at all. Back up the database first. Servers of the
    previous version continue: they wait while a migration is applied, and on PostgreSQL not while
    indexes are built. After an interruption, run it again: it builds the rest.

    With --finish servers may store what earlier versions cannot read, such as streams in a quarter
    of the space. The way back to an earlier version is then a backup. Exit code 6 if a server of an
    earlier version still works with the databases.
    """
    settings, entries = chosen.load()
    records: list[dict[str, object]] = []
    try:
        await _migrate(entries, records, dry_run=dry_run)
        if finish and not dry_run:
            await _finish(settings, entries)
    finally:
        if records or not out.is_table:
            out.show_list(records, _MIGRATIONS, "migration")


async def _migrate(
    entries: Sequence[Database], records: list[dict[str, object]], *, dry_run: bool
) -> None:
    from agentctl.admin.databases import plan_migration
    from agentctl.config.databases import display_url
    from agentctl.store.migrating import migrate
    from agentctl.store.schema import SCHEMA_VERSION, describe_newer

    began = time.monotonic()

    def report_applied(migration: Migration) -> None:
        """Report a migration of the database that the loop below has reached."""
        nonlocal began
        records.append(_migration_row(entry, migration, "applied"))
        counter.show(counter.text, counter.done + 1, max(counter.total or 0, counter.done + 1))
        if not migration.number:
            note(f"{migration.name} was built in {format_span(time.monotonic() - began)}")
        began = time.monotonic()

    for entry in entries:
        plan = await plan_migration(entry)
        where = f"{entry.id} ({display_url(entry.url)})"
        counter = Counter(f"migrations of {entry.id}", len(plan.migrations))

        if plan.version is not None and plan.version.is_newer:
            note(f"{where} was not changed: {describe_newer(plan.version)}")
        elif not plan.migrations:
            note(f"{where} is up to date, schema version {SCHEMA_VERSION}")
        elif dry_run:
            records += [_migration_row(entry, each, "pending") for each in plan.migrations]
            note(f"{where} would be {_describe_plan(plan)}; nothing was changed")
        else:
            async with showing_progress(counter):
                await migrate(entry, report_applied)
            note(f"{where} was {_describe_plan(plan)}")


async def _finish(settings: Settings, entries: Sequence[Database]) -> None:
    from agentctl.admin.databases import check_servers, finish_upgrade
    from agentctl.store.schema import TEXT_ROWS_SINCE

    await check_servers(settings)
    for entry in entries:
        await finish_upgrade(settings, entry.id)
        note(f"{entry.id} now works with versions from schema {TEXT_ROWS_SINCE} on only")


def _describe_plan(plan: MigrationPlan) -> str:
    count = len(plan.migrations)
    if plan.version is None:
        return "created"
    migrations = format_count(count, "migration")
    return f"migrated, {migrations} from schema version {plan.version.number}"


def _migration_row(entry: Database, migration: Migration, outcome: str) -> dict[str, object]:
    return {
        "db_id": entry.id,
        "migration": migration.name,
        "outcome": outcome,
        "statements": migration.summary(),
    }


async def index(out: CommandOutput, chosen: AllDatabases) -> None:
    """Index the texts of existing sessions, for `sessions list --search`.

    Adds the texts that the index lacks: of runs that ended before search was enabled, or with an
    older version, and after a change of the tokenizer. Servers continue to work. After an
    interruption, run it again: it continues.
    """
    from agentctl.admin.databases import index_texts

    settings, entries = chosen.load()
    if not settings.search.enabled:
        raise BadRequest("Search is not enabled", hint="set enabled = true in [search]")
    records: list[dict[str, object]] = []
    for entry in entries:
        counter = Counter("")
        async with showing_progress(counter):
            result = await index_texts(entry, settings.search.tokenizer, counter.show)
        records.append(asdict(result))
    out.show_list(records, _INDEXED, "db_id")
