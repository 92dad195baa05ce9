"""`agentctl sessions summarize`: summarize a session."""

from __future__ import annotations

from agentctl.cli.options import Output, SessionId
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.target import Target, with_target
from agentctl.requests import DEFAULT_LOCATOR, SessionLocator


@with_target(without=("type", "user_id"))
async def summarize_session(
    target: Target,
    session_id: SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
    output: Output = None,
) -> None:
    """Summarize a session now."""
    output_format = resolve_format(output)
    async with showing_progress("summarizing the session"):
        document = await target.operations.summarize_session(session_id, where, view="summary")
    show_record(document, columns.SUMMARIZED, output_format, id_field="session_id")
    target.report_done(f"summarized session {session_id}")
