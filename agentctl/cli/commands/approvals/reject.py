"""`agentctl approvals reject`: refuse a call or a question."""

from __future__ import annotations

from agentctl.cli.approvals import ApprovalId, Note, check_decidable, find_approval, send_decision
from agentctl.cli.options import DbId, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests.approvals import NewDecision


@with_target()
async def reject_call(
    target: Target,
    approval_id: ApprovalId,
    note: Note = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Reject a call or a question. The agent reads the note, and its run goes on."""
    output_format = resolve_format(output)
    approval = await find_approval(target, approval_id, db)
    check_decidable(approval, ("approval", "input"), target)
    await send_decision(target, approval, NewDecision("reject", note=note), output_format)
