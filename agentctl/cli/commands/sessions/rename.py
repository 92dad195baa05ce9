"""`agentctl sessions rename`: rename a session."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.options import Output, SessionId
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.target import Target, with_target
from agentctl.requests import DEFAULT_LOCATOR, SessionLocator


@with_target(without=("type", "user_id"))
async def rename_session(
    target: Target,
    session_id: SessionId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="New name")],
    where: SessionLocator = DEFAULT_LOCATOR,
    output: Output = None,
) -> None:
    """Rename a session."""
    output_format = resolve_format(output)
    document = await target.operations.rename_session(session_id, name, where, view="summary")
    show_record(document, columns.RENAMED, output_format, id_field="session_id")
    target.report_done(f"renamed session {session_id}")
