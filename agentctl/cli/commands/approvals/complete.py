"""`agentctl approvals complete`: report the result of a call that a person or a caller knows."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.approvals import (
    ApprovalId,
    Note,
    check_decidable,
    find_approval,
    parse_value,
    read_value,
    send_decision,
)
from agentctl.cli.options import DbId, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.requests.approvals import NewDecision


@with_target()
async def complete_call(
    target: Target,
    approval_id: ApprovalId,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="VALUE",
            help="The result of the call, JSON or text (- reads stdin, @FILE a file)",
        ),
    ] = None,
    fail: Annotated[
        bool, typer.Option("--fail", help="The call failed; --note has the reason")
    ] = False,
    note: Note = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Report the result of a call that the caller makes, or whose server died."""
    output_format = resolve_format(output)
    if (result is None) == (not fail):
        raise UsageError("give --result VALUE, or --fail with --note TEXT")
    text = None if result is None else read_value("--result", result)
    approval = await find_approval(target, approval_id, db)
    check_decidable(approval, ("external", "outcome"), target)
    decision = NewDecision("fail", note=note)
    if text is not None:
        decision = NewDecision("complete", note=note, result=parse_value(text, None))
    await send_decision(target, approval, decision, output_format)
