"""`agentctl db backup`: copy a SQLite database to a new file, and check the copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.databases import select_databases
from agentctl.cli.options import Config, DbId, Output
from agentctl.cli.show.output import Format, resolve_format, show_record, write_line
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import run_until_done

if TYPE_CHECKING:
    from agentctl.config.settings import Database

_COLUMNS = [
    *plain_columns("file", "db_id", "bytes", "seconds", "taken_at"),
    *plain_columns("schema", "sessions", "runs", "rows", "sha256"),
]


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
    output_format = resolve_format(output)
    entries = select_databases(config, db)
    entry = entries[0]
    from agentctl.config.databases import is_sqlite_url

    if is_sqlite_url(entry.url):
        run_until_done(_back_up(entry, file, output_format))
        if db is None and len(entries) > 1:
            others = ", ".join(each.id for each in entries[1:])
            note(f"it has one database; back up the others with --db: {others}")
    else:
        from agentctl.service.databases import format_dump_command, format_restore_command

        write_line(format_dump_command(entry, file))
        note(
            "nothing was copied: run this command where the PostgreSQL client programs are"
            " installed"
        )
        password = f"PGPASSWORD=${entry.password_env}, or " if entry.password_env else ""
        note(f"  password: {password}a file in PGPASSFILE")
        if entry.tls != "prefer":
            certificates = f" PGSSLROOTCERT={entry.tls_ca_file}" if entry.tls_ca_file else ""
            note(f"  encryption: PGSSLMODE={entry.tls}{certificates}")
        note(f"  restore into an empty database: {format_restore_command(entry, file)}")


async def _back_up(entry: Database, file: Path, output_format: Format) -> None:
    from agentctl.service.databases import back_up

    counter = Counter("")
    async with showing_progress(counter):
        backup = await back_up(entry, file.absolute(), counter.show)
    show_record(backup, _COLUMNS, output_format, id_field="file")
    note(
        f"copied {entry.id} to {backup['file']} and checked it; to restore it:"
        f" agentctl db restore {backup['file']}"
    )
