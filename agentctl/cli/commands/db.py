"""`agentctl db`: inspect, migrate, check and back up the configured databases, locally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.help import CommandApp
from agentctl.cli.options import Config, DbId, Output
from agentctl.cli.show.output import Format, resolve_format, show_list, show_record, write_line
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import adding_config, run_until_done
from agentctl.errors import NotFound

if TYPE_CHECKING:
    from agentctl.config.settings import Database
    from agentctl.service.databases import DatabaseStatus
    from agentctl.store.schema import Migration

app = CommandApp(
    help="Inspect, migrate, check and back up databases.",
    epilog="Example: agentctl db status",
)

OnlyDatabase = Annotated[
    str | None, typer.Option("--db", metavar="ID", help="Database id (default: all databases)")
]

_STATUS = Columns(
    tsv=[
        Column(name)
        for name in (
            "db_id", "engine", "state", "schema", "newest", "pending", "bytes", "wal_bytes",
            "sessions", "runs", "estimated", "url", "problem",
        )
    ],
    table=[
        Column("db_id", heading="id"),
        Column("state"),
        Column("engine"),
        Column("schema", lambda record: _format_version(record["schema"], record["newest"])),
        Column("pending", lambda record: ", ".join(record["pending"]), look="text"),
        Column("bytes", lambda record: _format_size(record["bytes"]), heading="size"),
        Column("wal_bytes", lambda record: _format_size(record["wal_bytes"]), heading="log"),
        Column("sessions", lambda record: _format_count(record, "sessions")),
        Column("runs", lambda record: _format_count(record, "runs")),
        Column("url", look="text"),
    ],
)  # fmt: skip
_MIGRATIONS = Columns(
    tsv=[Column("db_id"), Column("migration"), Column("outcome"), Column("statements")],
    table=[
        Column("db_id"),
        Column("migration"),
        Column("outcome"),
        Column("statements", lambda record: "; ".join(record["statements"]), look="text"),
    ],
)
_BACKUP = [
    Column(name)
    for name in (
        "file", "db_id", "bytes", "seconds", "taken_at", "schema", "sessions", "runs", "rows",
        "sha256",
    )
]  # fmt: skip


@app.command("status", epilog="Example: agentctl db status -o json")
def show_status(config: Config = None, db: OnlyDatabase = None, output: Output = None) -> None:
    """Show the state, schema version, pending migrations and size of each database.

    Exit code 7 if a database is missing or cannot be used, else 1 if a schema version is too old or
    too new.
    """
    form = resolve_format(output)
    entries = select_databases(config, db)
    found: list[DatabaseStatus] = []

    async def look() -> None:
        from agentctl.service.databases import read_database_status

        for entry in entries:
            async with showing_progress(f"inspecting {entry.id}"):
                found.append(await read_database_status(entry))

    run_until_done(look())
    _show([each.record() for each in found], _STATUS, form, "db_id")
    failures = [each.failure for each in found if each.failure is not None]
    for failure in sorted(failures, key=lambda each: -each.exit_code)[:1]:
        with adding_config(config):
            raise failure


@app.command("migrate", epilog="Example: agentctl db migrate --dry-run")
def migrate(
    config: Config = None,
    db: OnlyDatabase = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the pending migrations, change nothing")
    ] = False,
    output: Output = None,
) -> None:
    """Apply pending migrations; create missing databases.

    Each migration is applied completely or not at all. Back up the database first, and stop the
    servers: they wait while a migration is applied.
    """
    form = resolve_format(output)
    entries = select_databases(config, db)
    records: list[dict[str, object]] = []
    try:
        run_until_done(_migrate(entries, records, dry_run=dry_run))
    finally:
        if records or form not in ("table", "wide"):
            _show(records, _MIGRATIONS, form, "migration")


async def _migrate(
    entries: Sequence[Database], records: list[dict[str, object]], *, dry_run: bool
) -> None:
    from agentctl.config.databases import display_url
    from agentctl.service.databases import MigrationPlan, migrate, plan_migration

    def applied(plan: MigrationPlan, migration: Migration) -> None:
        records.append(_migration_row(plan.entry, migration, "applied"))
        counter.done += 1

    for entry in entries:
        plan, where = await plan_migration(entry), f"{entry.id} ({display_url(entry.url)})"
        counter = Counter(f"migrations of {entry.id}", len(plan.migrations))
        if not plan.migrations:
            note(f"{where} is up to date, schema version {plan.version}")
        elif dry_run:
            records += [_migration_row(entry, each, "pending") for each in plan.migrations]
            note(f"{where} would be {_describe_plan(plan)}; nothing was changed")
        else:
            async with showing_progress(counter):
                await migrate(plan, applied)
            note(f"{where} was {_describe_plan(plan)}")


def _describe_plan(plan: Any) -> str:
    count = len(plan.migrations)
    if plan.version is None:
        return "created"
    migrations = "1 migration" if count == 1 else f"{count} migrations"
    return f"migrated, {migrations} from schema version {plan.version}"


def _migration_row(entry: Database, migration: Migration, outcome: str) -> dict[str, object]:
    return {
        "db_id": entry.id,
        "migration": migration.name,
        "outcome": outcome,
        "statements": migration.summary(),
    }


@app.command("check", epilog="Example: agentctl db check --db main")
def check(config: Config = None, db: OnlyDatabase = None, output: Output = None) -> None:
    """Check integrity: pages, schema, references (read-only).

    Reads the whole database, which can take long; servers continue to work. Exit code 1 if there
    is a problem.
    """
    from agentctl.cli.commands.doctor import check_findings, show_findings

    form = resolve_format(output)
    entries = select_databases(config, db)
    findings: list[Any] = []
    run_until_done(_check(entries, findings))
    show_findings(findings, form)
    check_findings(findings)


async def _check(entries: Sequence[Database], findings: list[Any]) -> None:
    from agentctl.service.databases import check_integrity

    for entry in entries:
        counter = Counter("")
        async with showing_progress(counter):
            async for finding in check_integrity(entry, counter.show):
                findings.append(finding)


@app.command("backup", epilog="Example: agentctl db backup /backups/agentctl-2026-11-20.db")
def back_up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file; never overwritten")],
    config: Config = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Copy a SQLite database to a new file, and check the copy.

    Servers continue to write; the copy has everything that was committed when it started. For
    PostgreSQL, prints the pg_dump command instead.
    """
    form = resolve_format(output)
    entry = select_databases(config, db)[0]
    from agentctl.config.databases import is_sqlite_url

    if is_sqlite_url(entry.url):
        run_until_done(_back_up(entry, file, form))
    else:
        _print_dump(entry, file)


async def _back_up(entry: Database, file: Path, form: Format) -> None:
    from agentctl.records.document import build_document
    from agentctl.service.databases import back_up

    counter = Counter("")
    async with showing_progress(counter):
        made = await back_up(entry, file.absolute(), counter.show)
    show_record(build_document(made), _BACKUP, form, id_field="file")
    note(f"copied {entry.id} to {made['file']} and checked it; to restore it see docs/databases.md")


def _print_dump(entry: Database, file: Path) -> None:
    from agentctl.service.databases import format_dump_command, format_restore_command

    write_line(format_dump_command(entry, file))
    note("nothing was copied: run this command where the PostgreSQL client programs are installed")
    password = f"PGPASSWORD=${entry.password_env}, or " if entry.password_env else ""
    note(f"  password: {password}a file in PGPASSFILE")
    if entry.tls != "prefer":
        certificates = f" PGSSLROOTCERT={entry.tls_ca_file}" if entry.tls_ca_file else ""
        note(f"  encryption: PGSSLMODE={entry.tls}{certificates}")
    note(f"  restore into an empty database: {format_restore_command(entry, file)}")


def select_databases(config: Path | None, db: str | None) -> Sequence[Database]:
    """Return the configured databases, or the one with this id.

    Raises:
        NotFound: no database has this id.
    """
    from agentctl.cli.log import discard_log
    from agentctl.config import load_settings

    discard_log()  # the command reports the failure
    settings = load_settings(config)
    if db is None:
        return settings.databases
    chosen = [entry for entry in settings.databases if entry.id == db]
    if not chosen:
        ids = ", ".join(entry.id for entry in settings.databases)
        raise NotFound(f"Database {db!r} not found", hint=f"configured databases: {ids}")
    return chosen


def _show(records: list[dict[str, object]], columns: Columns, form: Format, id_field: str) -> None:
    from agentctl.records.document import build_document

    show_list(build_document(records), columns, form, id_field=id_field)


def _format_version(version: object, newest: object) -> str:
    return "" if version is None else f"{version} of {newest}"


def _format_count(record: Mapping[str, Any], name: str) -> str:
    count = record[name]
    return "" if count is None else f"{'about ' if record['estimated'] else ''}{count}"


def _format_size(count: int | None) -> str:
    from agentctl.records.numbers import format_bytes

    return "" if count is None else format_bytes(count)
