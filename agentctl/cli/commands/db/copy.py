"""`agentctl db copy`: move a database from SQLite to PostgreSQL while servers work with it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.cli.databases import OneDatabase, find_databases
from agentctl.cli.options import Config
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import note
from agentctl.errors import NotFound, UsageError

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings

WAIT_SECONDS = 30.0

_STATUS = [
    *plain_columns("stage", "source", "target", "rows", "copied", "changes", "live_runs"),
    *plain_columns("started_at", "finished_at"),
]
_FINISHED = plain_columns("from", "to", "rows", "starts_refused", "writes_refused")


async def copy(
    out: CommandOutput,
    source: str | None = option("--from", "ID", "SQLite database to copy (default: the first)"),
    target: str | None = option("--to", "ID|URL", "Empty PostgreSQL database"),
    finish: bool = flag("--finish", "Close the source and let the target take its place"),
    wait: float | None = option(
        "--wait", "SECONDS", "With --finish: maximum wait for live runs (default: 30)", min=0
    ),
    interrupt: bool = flag("--interrupt", "With --finish: even if runs are live after the wait"),
    status: bool = flag("--status --dry-run", "Show the status, change nothing"),
    abandon: bool = flag("--abandon", "End a copy that has begun"),
    config: Config = None,
) -> None:
    """Copy a SQLite database to PostgreSQL while servers work with it.

    The first call copies all rows and records what changes meanwhile; if it ends early, run it
    again. Then --finish compares both databases, lets no run start, waits for the live runs, and
    closes the source: servers of it refuse writes with DATABASE_MOVED and do not start again.
    """
    if finish + status + abandon > 1:
        raise UsageError("give one of --finish, --status and --abandon")
    if (interrupt or wait is not None) and not finish:
        raise UsageError("--wait and --interrupt need --finish")
    from agentctl.admin import database_copy
    from agentctl.config.databases import build_url

    settings, entries = OneDatabase(config, source).load()
    entry, counter = entries[0], Counter("rows copied")
    if abandon:
        place = await database_copy.abandon_copy(entry)
        note(f"the copy to {place} has ended; what it has is not served and can be deleted")
        return
    if target is None:
        raise UsageError("give the target with --to, an id or a URL")
    other, searched = _find_target(settings, target), settings.search.enabled
    if status:
        async with showing_progress("counting rows"):
            found = await database_copy.read_copy_status(entry, other)
        out.show_record(asdict(found), _STATUS, "stage")
        return
    if not finish:
        async with showing_progress(counter):
            found = await database_copy.copy_rows(
                entry, other, counter.show, indexes_texts=searched
            )
        out.show_record(asdict(found), _STATUS, "stage")
        note(f"copied {found.source}; its changes are recorded; to move: add --finish")
        return
    seconds = WAIT_SECONDS if wait is None else wait
    async with showing_progress(counter):
        facts = await database_copy.finish_copy(
            entry, other, wait=seconds, interrupt=interrupt, report=counter.show,
            indexes_texts=searched,
        )  # fmt: skip
    out.show_record(facts, _FINISHED, "to")
    url = build_url(str(facts["to"]))
    note(f"moved to {url}: name it in [[databases]] url, and start the servers again")


def _find_target(settings: Settings, target: str) -> Database:
    """Return the configured database with this id, or one for a URL."""
    from agentctl.config.databases import check_database_url
    from agentctl.config.places import Place
    from agentctl.config.settings import Database

    if "://" in target:
        return Database("target", check_database_url(target, Path.cwd(), Place("--to")))
    try:
        return find_databases(settings, target)[0]
    except NotFound as error:
        hint = f'{error.hint}; a URL such as "postgresql://db/new" names any other one'
        raise NotFound(error.detail, hint=hint) from None
