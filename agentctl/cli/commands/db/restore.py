"""`agentctl db restore`: restore a SQLite database from a backup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.databases import find_databases, load_settings_quietly
from agentctl.cli.options import Config, DbId, Output
from agentctl.cli.show.output import Format, resolve_format, show_record, write_line
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import run_until_done
from agentctl.errors import UsageError

if TYPE_CHECKING:
    from agentctl.config.settings import Database

SETTLED = plain_columns("ended_runs", "unknown_calls", "held_deliveries")
"""The changes to the unfinished work of a restored database."""

_COLUMNS = [
    *plain_columns("file", "db_id", "sessions", "runs", "rows", "sha256"),
    *SETTLED,
    *plain_columns("moved_to"),
]


def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File of db backup, or of db backups")
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Restore the newest verified one of `db backups`")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move the present database aside first")
    ] = False,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HASH", help="Hash that `db backup` printed")
    ] = None,
    config: Config = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Restore a SQLite database from a backup.

    Stop the servers of the database first. The backup is checked and migrated in a copy, which then
    takes the place of the database by one rename; the present files are moved aside, never deleted.
    Nothing goes on by itself: runs that were live in the backup end as WORKER_LOST, approved calls
    without an end become unknown, and waiting webhook deliveries are held until `webhooks
    redeliver`. For PostgreSQL, prints the pg_restore command instead.
    """
    output_format = resolve_format(output)
    if (file is None) != latest:
        raise UsageError("give either FILE or --latest", hint="list them with: agentctl db backups")
    settings = load_settings_quietly(config)
    entry = find_databases(settings, db)[0]
    from agentctl.config.databases import is_sqlite_url
    from agentctl.service.databases import format_restore_command
    from agentctl.service.restores import find_latest_backup

    if is_sqlite_url(entry.url):
        path = file.absolute() if file else find_latest_backup(settings.backup.folder, entry)
        run_until_done(_restore(entry, path, replace, sha256, output_format))
    elif file is None:
        raise UsageError(
            "--latest is for SQLite databases",
            hint="docs/guides/recover-postgresql.md recovers a PostgreSQL database",
        )
    else:
        write_line(format_restore_command(entry, file))
        note("nothing was restored: run this command on an empty database")
        note(f"afterwards, before a server starts: agentctl db settle --db {entry.id}")


async def _restore(
    entry: Database, file: Path, replace: bool, sha256: str | None, output_format: Format
) -> None:
    from agentctl.service.restores import restore

    counter = Counter(f"rows of {entry.id} checked")

    def report(count: int) -> None:
        counter.done = count

    async with showing_progress(counter):
        restored = await restore(entry, file, replace=replace, sha256=sha256, report=report)
    show_record(restored, _COLUMNS, output_format, id_field="file")
    note(f"restored {entry.id} from {file}")
    if restored["moved_to"] is not None:
        note(f"the former database is {restored['moved_to']}")
    note_held_deliveries(restored)


def note_held_deliveries(settled: Mapping[str, object]) -> None:
    """Write how to list the webhook deliveries that a restore holds."""
    if settled["held_deliveries"]:
        note("list the held deliveries with: agentctl webhooks deliveries --state dead")
