"""`agentctl sessions delete`: delete sessions and their runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from agentctl.cli.commands.sessions.release import build_release_hint
from agentctl.cli.options import DbId, SessionIds, Yes
from agentctl.cli.show.output import write_line
from agentctl.cli.show.progress import report_failures, run_all
from agentctl.cli.show.terminal import confirm
from agentctl.cli.target import Target, with_target
from agentctl.errors import Held
from agentctl.requests import BulkDeletion, SessionLocator


@with_target()
async def delete_sessions(
    target: Target,
    session_ids: SessionIds,
    yes: Yes = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel live runs first; deletes one session at a time")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the sessions that would be deleted, delete none"),
    ] = False,
    db: DbId = None,
) -> None:
    """Delete sessions and their runs.

    Several sessions are deleted together: all of them or none.
    """
    where = SessionLocator(db_id=db)
    if dry_run:
        for session_id in session_ids:
            await target.operations.get_session_by_id(session_id, where, view="summary")
        for session_id in session_ids:
            write_line(session_id)
        return

    async def delete(session_id: str) -> None:
        with _naming_release(target, db):
            await target.operations.delete_session(session_id, where, cancel=cancel)
        target.report_done(f"deleted session {session_id}")

    is_one = len(session_ids) == 1
    what = f"session {session_ids[0]}" if is_one else f"{len(session_ids)} sessions"
    confirm(f"Delete {what} with all runs, {target.place}?", yes=yes)
    if cancel or is_one:
        report_failures(session_ids, await run_all(session_ids, delete))
        return
    with _naming_release(target, db):
        await target.operations.delete_sessions(BulkDeletion(tuple(session_ids), db))
    target.report_done(f"deleted {what}")


@contextmanager
def _naming_release(target: Target, db: str | None) -> Iterator[None]:
    try:
        yield
    except Held as failure:
        failure.hint = build_release_hint(target, failure.session_ids, db)
        raise
