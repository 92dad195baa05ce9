"""`agentctl db settle`: end the unfinished work in a restored PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.cli.commands.db.restore import SETTLED, note_held_deliveries
from agentctl.cli.databases import find_databases, load_settings_quietly
from agentctl.cli.options import Config, DbId, Output, Yes
from agentctl.cli.show.output import Format, resolve_format, show_record
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import confirm
from agentctl.cli.target import run_until_done
from agentctl.errors import UsageError

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings


def settle(config: Config = None, db: DbId = None, yes: Yes = False, output: Output = None) -> None:
    """End the unfinished work in a restored PostgreSQL database.

    Run it once, before a server starts on a database of pg_restore or of a recovery to an earlier
    time. No work goes on by itself then: live runs end as WORKER_LOST, approved calls without an
    end become unknown, and waiting webhook deliveries are held until `webhooks redeliver`. For
    SQLite, `db restore` does the same.
    """
    output_format = resolve_format(output)
    settings = load_settings_quietly(config)
    entry = find_databases(settings, db)[0]
    from agentctl.config.databases import display_url, is_sqlite_url

    if is_sqlite_url(entry.url):
        raise UsageError(
            "db settle is for PostgreSQL databases",
            hint="agentctl db restore FILE restores a SQLite database, and settles it",
        )
    confirm(f"End all unfinished work in {display_url(entry.url)}?", yes=yes)
    run_until_done(_settle(settings, entry, output_format))


async def _settle(settings: Settings, entry: Database, output_format: Format) -> None:
    from agentctl.service.restores import settle_recovered

    async with showing_progress(f"settling {entry.id}"):
        settled = await settle_recovered(settings, entry)
    show_record(settled, [Column("db_id"), *SETTLED], output_format, id_field="db_id")
    note_held_deliveries(settled)
