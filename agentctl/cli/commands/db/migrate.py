"""`agentctl db migrate`: apply pending migrations, and end an upgrade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.databases import OnlyDatabase, find_databases, load_settings_quietly
from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import resolve_format, show_list
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import run_until_done

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings
    from agentctl.service.databases import MigrationPlan
    from agentctl.store.schema import Migration

_COLUMNS = Columns(
    tsv=plain_columns("db_id", "migration", "outcome", "statements"),
    table=[
        *plain_columns("db_id", "migration", "outcome"),
        Column("statements", lambda record: "; ".join(record["statements"]), look="text"),
    ],
)


def migrate(
    config: Config = None,
    db: OnlyDatabase = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the pending migrations, change nothing")
    ] = False,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="End the upgrade: earlier versions will not work any more"),
    ] = False,
    output: Output = None,
) -> None:
    """Apply pending migrations; create missing databases.

    Each migration is applied completely or not at all. Back up the database first. Servers of the
    previous version continue: they wait while a migration is applied.

    With --finish servers may store what earlier versions cannot read, such as streams in a quarter
    of the space. The way back to an earlier version is then a backup. Exit code 6 if a server of an
    earlier version still works with the databases.
    """
    output_format = resolve_format(output)
    settings = load_settings_quietly(config)
    entries = find_databases(settings, db)
    records: list[dict[str, object]] = []
    try:
        run_until_done(_migrate(entries, records, dry_run=dry_run))
        if finish and not dry_run:
            run_until_done(_finish(settings, entries))
    finally:
        if records or output_format not in ("table", "wide"):
            show_list(records, _COLUMNS, output_format, id_field="migration")


async def _migrate(
    entries: Sequence[Database], records: list[dict[str, object]], *, dry_run: bool
) -> None:
    from agentctl.config.databases import display_url
    from agentctl.service.databases import migrate, plan_migration
    from agentctl.store.schema import SCHEMA_VERSION, describe_newer

    def applied(plan: MigrationPlan, migration: Migration) -> None:
        records.append(_migration_row(plan.entry, migration, "applied"))
        counter.done += 1

    for entry in entries:
        plan = await plan_migration(entry)
        where = f"{entry.id} ({display_url(entry.url)})"
        counter = Counter(f"migrations of {entry.id}", len(plan.migrations))
        if plan.version is not None and plan.version.is_newer:
            note(f"{where} was not changed: {describe_newer(plan.version)}")
        elif not plan.migrations:
            note(f"{where} is up to date, schema version {SCHEMA_VERSION}")
        elif dry_run:
            records += [
                _migration_row(entry, migration, "pending") for migration in plan.migrations
            ]
            note(f"{where} would be {_describe_plan(plan)}; nothing was changed")
        else:
            async with showing_progress(counter):
                await migrate(plan, applied)
            note(f"{where} was {_describe_plan(plan)}")


async def _finish(settings: Settings, entries: Sequence[Database]) -> None:
    from agentctl.service.finish_upgrade import check_servers, finish_upgrade
    from agentctl.store.schema import TEXT_ROWS_SINCE

    await check_servers(settings)
    for entry in entries:
        await finish_upgrade(settings, entry.id)
        note(f"{entry.id} now works with versions from schema {TEXT_ROWS_SINCE} on only")


def _describe_plan(plan: MigrationPlan) -> str:
    count = len(plan.migrations)
    if plan.version is None:
        return "created"
    migrations = "1 migration" if count == 1 else f"{count} migrations"
    return f"migrated, {migrations} from schema version {plan.version.number}"


def _migration_row(entry: Database, migration: Migration, outcome: str) -> dict[str, object]:
    return {
        "db_id": entry.id,
        "migration": migration.name,
        "outcome": outcome,
        "statements": migration.summary(),
    }
