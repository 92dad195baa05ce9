"""`agentctl sessions prune`: remove the sessions that were not used for some days.

The work is a loop over units of sessions: read a page of idle ones, export them to a verified file,
and request that exactly these are removed if they are still idle.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from agentctl.cli.durations import parse_days
from agentctl.cli.export_folder import ExportFolder
from agentctl.cli.options import AgentId, DbId, Output, TeamId, WorkflowId, Yes, resolve_component
from agentctl.cli.paging import read_pages
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, plain_columns
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import Record
from agentctl.records.text import format_bytes
from agentctl.requests import SessionLocator
from agentctl.requests.retention import IdleFilter, PruneRequest

COLUMNS = [
    *plain_columns("sessions", "runs"),
    Column("bytes", lambda record: format_bytes(record["bytes"])),
    *plain_columns("oldest", "newest", "held", "busy", "used"),
    Column("files", lambda record: ", ".join(record["files"])),
]


@dataclass(slots=True)
class Totals:
    """Sums over sessions; `oldest` and `newest` are times of their last use."""

    sessions: int = 0
    runs: int = 0
    bytes: int = 0
    oldest: str | None = None
    newest: str | None = None
    left: Tally[str] = field(default_factory=Tally)

    def add(self, session: Record) -> None:
        self.sessions += 1
        self.runs += session["run_count"]
        self.bytes += session["bytes"]
        self.oldest = min(filter(None, (self.oldest, session["updated_at"])))
        self.newest = max(filter(None, (self.newest, session["updated_at"])))

    def build_record(self, files: Sequence[Path] = ()) -> Record:
        """Return the record of the command."""
        numbers = {name: getattr(self, name) for name in ("sessions", "runs", "bytes")}
        left = {name: self.left[name] for name in ("held", "busy", "used")}
        times = {"oldest": self.oldest, "newest": self.newest}
        return {**numbers, **times, **left, "files": [str(file) for file in files]}


@with_target()
async def prune_sessions(
    target: Target,
    idle: Annotated[
        str,
        typer.Option(
            "--idle", metavar="DAYS", help="Time since the last use of a session, such as 90d"
        ),
    ],
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, remove nothing")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FOLDER",
            help="Write the sessions to files in this folder before they are removed",
        ),
    ] = None,
    yes: Yes = False,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Remove the sessions that were not used for some days, with their runs.

    Held sessions and those with a live or paused run are left. With --export each file is on the
    disk and was read again before its sessions are removed; `sessions import` reads it. The command
    can be interrupted and repeated. Only administrators can remove sessions in this way.
    """
    output_format = resolve_format(output)
    kind, component_id = resolve_component(agent, team, workflow) or (None, None)
    choice = IdleFilter(parse_days(idle), kind, component_id, db)
    if dry_run and export is not None:
        raise UsageError("--dry-run and --export exclude each other")
    found = Totals()
    if dry_run or not yes:
        if not dry_run:
            check_confirmable(yes=yes)
        found = await _count(target, choice)
        if dry_run:
            show_record(found.build_record(), COLUMNS, output_format, id_field="sessions")
            note("nothing was removed")
            return
        what = f"{found.sessions} sessions with {found.runs} runs ({format_bytes(found.bytes)})"
        how = "without an export" if export is None else f"after an export to {export}"
        confirm(f"Remove {what} {how}, {target.place}?", yes=yes)
    folder = None if export is None else ExportFolder(export, target.operations)
    removed = Totals()
    try:
        await _prune(target, choice, folder, removed, found.sessions or None)
    except BaseException:
        note(f"{removed.sessions} sessions were removed")
        raise
    files = [] if folder is None else folder.files
    show_record(removed.build_record(files), COLUMNS, output_format, id_field="sessions")


async def _read_units(target: Target, filter: IdleFilter) -> AsyncGenerator[list[Any]]:
    def read(cursor: str | None) -> Any:
        return target.operations.get_idle_sessions(replace(filter, cursor=cursor))

    async with aclosing(read_pages(read)) as pages:
        async for rows in pages:
            yield rows


async def _count(target: Target, filter: IdleFilter) -> Totals:
    totals, counter = Totals(), Counter("idle sessions counted")
    async with showing_progress(counter), aclosing(_read_units(target, filter)) as units:
        async for rows in units:
            _add_idle(totals, rows)
            counter.done = totals.sessions
    return totals


def _add_idle(totals: Totals, rows: Sequence[Record]) -> None:
    for row in rows:
        if row["state"] == "idle":
            totals.add(row)
        else:
            totals.left[row["state"]] += 1


async def _prune(
    target: Target,
    filter: IdleFilter,
    folder: ExportFolder | None,
    removed: Totals,
    total: int | None,
) -> None:
    counter = Counter("sessions removed", total)
    where = SessionLocator(db_id=filter.db_id)
    async with showing_progress(counter), aclosing(_read_units(target, filter)) as units:
        async for rows in units:
            idle = {row["session_id"]: row for row in rows if row["state"] == "idle"}
            removed.left.update(row["state"] for row in rows if row["state"] != "idle")
            ids = list(idle)
            if folder is not None and ids:
                ids = await folder.write(list(idle.values()), where)
            if not ids:
                continue
            request = PruneRequest(filter.idle_days, tuple(ids), filter.db_id)
            done = (await target.operations.prune_sessions(request)).value
            for session_id in done["removed"]:
                removed.add(idle[session_id])
            for state in ("held", "busy", "used"):
                removed.left[state] += len(done[state])
            counter.done = removed.sessions
