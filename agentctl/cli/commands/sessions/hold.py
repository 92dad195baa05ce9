"""`agentctl sessions hold`: keep sessions from being deleted."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.options import DbId, SessionIds
from agentctl.cli.show.progress import report_failures, run_all
from agentctl.cli.target import Target, with_target
from agentctl.requests import SessionLocator


@with_target()
async def hold_sessions(
    target: Target,
    session_ids: SessionIds,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, shown to administrators")
    ],
    db: DbId = None,
) -> None:
    """Hold sessions: nothing deletes them until they are released.

    Only administrators can hold sessions, and see who holds them and why.
    """

    async def hold(session_id: str) -> None:
        await target.operations.hold_session(session_id, reason, SessionLocator(db_id=db))
        target.report_done(f"held session {session_id}")

    report_failures(session_ids, await run_all(session_ids, hold))
