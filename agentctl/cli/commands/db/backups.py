"""`agentctl db backups`: the backups that servers have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.databases import OnlyDatabase, find_databases, load_settings_quietly
from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import Format, resolve_format, show_list
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import run_until_done
from agentctl.errors import SomethingWrong
from agentctl.records.text import format_bytes

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings

_COLUMNS = Columns(
    tsv=[
        *plain_columns("file", "db_id", "state", "taken_at", "bytes", "schema", "sessions", "runs"),
        *plain_columns("rows", "sha256", "seconds"),
    ],
    table=[
        Column("db_id", heading="id"),
        Column("taken_at"),
        Column("bytes", lambda record: format_bytes(record["bytes"]), heading="size"),
        Column("state"),
        Column("schema"),
        Column("sessions"),
        Column("file", look="whole"),
    ],
)


def list_backups(
    config: Config = None,
    db: OnlyDatabase = None,
    check: Annotated[bool, typer.Option("--check", help="Read each backup completely")] = False,
    output: Output = None,
) -> None:
    """List the backups that servers have written, newest first.

    [backup] of the configuration has their schedule and folder. `verified` was compared with the
    database when it was made; only those are restored by `db restore --latest`. Exit code 1 if
    --check finds a damaged one.
    """
    output_format = resolve_format(output)
    settings = load_settings_quietly(config)
    entries = find_databases(settings, db)
    run_until_done(_list_backups(settings, entries, check, output_format))


async def _list_backups(
    settings: Settings, entries: Sequence[Database], check: bool, output_format: Format
) -> None:
    from agentctl.config.databases import is_sqlite_url
    from agentctl.service.restores import list_backups

    records: list[dict[str, object]] = []
    counter = Counter("backups")

    def report(count: int) -> None:
        counter.done = count

    async with showing_progress(counter):
        for entry in entries:
            if is_sqlite_url(entry.url):
                folder = settings.backup.folder
                records += await list_backups(folder, entry, check=check, report=report)
    show_list(records, _COLUMNS, output_format, id_field="file")
    for entry in entries:
        note(_describe_schedule(settings, entry, records))
    damaged = [record for record in records if record["state"] == "damaged"]
    if damaged:
        raise SomethingWrong(
            f"{len(damaged)} of {len(records)} backups are damaged",
            hint="remove them, and check the disk",
        )


def _describe_schedule(
    settings: Settings, entry: Database, records: Sequence[Mapping[str, Any]]
) -> str:
    from agentctl.config.databases import is_sqlite_url
    from agentctl.records.times import format_span, now, parse_rfc3339

    if not is_sqlite_url(entry.url):
        return f"{entry.id}: backups of PostgreSQL are not listed here"
    if not settings.backup.includes(entry.id):
        return f"{entry.id}: servers write no backups; set every in [backup]"
    times = [
        parse_rfc3339(record["taken_at"])
        for record in records
        if record["db_id"] == entry.id and record["state"] == "verified"
    ]
    every = f"a server writes one every {settings.backup.every}"
    if not times:
        return f"{entry.id}: no backup yet; {every}"
    age = format_span((now() - max(times)) / 1_000_000)
    return f"{entry.id}: the newest backup is {age} old; {every}"
