"""`agentctl sessions release`: end the holds of sessions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from agentctl.cli.options import DbId, SessionIds
from agentctl.cli.show.progress import report_failures, run_all
from agentctl.cli.target import Target, with_target
from agentctl.requests import SessionLocator


@with_target()
async def release_sessions(target: Target, session_ids: SessionIds, db: DbId = None) -> None:
    """End the holds of sessions, which can be deleted then."""

    async def release(session_id: str) -> None:
        await target.operations.release_session(session_id, SessionLocator(db_id=db))
        target.report_done(f"released session {session_id}")

    report_failures(session_ids, await run_all(session_ids, release))


def build_release_hint(target: Target, session_ids: Sequence[str], db: str | None) -> str:
    """Return the hint of an error about held sessions of a database; None is the default one."""
    words = ["sessions", "release", *session_ids, *(("--db", db) if db else ())]
    return f"an administrator can end the hold with: {target.command(shlex.join(words))}"
