"""`agentctl approvals retry`: make a call again whose outcome is unknown."""

from __future__ import annotations

from agentctl.cli.approvals import (
    ApprovalId,
    Note,
    SeenHash,
    check_decidable,
    confirm_call,
    find_approval,
    send_decision,
)
from agentctl.cli.options import DbId, Output, Yes
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests.approvals import NewDecision


@with_target()
async def retry_call(
    target: Target,
    approval_id: ApprovalId,
    hash: SeenHash = None,
    yes: Yes = False,
    note: Note = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Make a call again whose server died. It may have been made before."""
    output_format = resolve_format(output)
    approval = await find_approval(target, approval_id, db)
    check_decidable(approval, ("outcome",), target)
    question = f"Call {approval['tool_name']} again, {target.place}? It may have been called before"
    confirm_call(target, approval, question, seen_hash=hash, yes=yes)
    decision = NewDecision("retry", approval["arguments_hash"], note=note)
    await send_decision(target, approval, decision, output_format)
