"""`agentctl approvals approve`: let a call be made, as it is or with edited arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.approvals import (
    ApprovalId,
    Note,
    SeenHash,
    check_decidable,
    confirm_call,
    find_approval,
    read_value,
    send_decision,
)
from agentctl.cli.options import DbId, Output, Yes, parse_object
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests.approvals import NewDecision


@with_target()
async def approve_call(
    target: Target,
    approval_id: ApprovalId,
    hash: SeenHash = None,
    yes: Yes = False,
    arguments: Annotated[
        str | None,
        typer.Option(
            "--arguments",
            metavar="JSON",
            help="JSON object: the arguments to call with instead (- reads stdin, @FILE a file)",
        ),
    ] = None,
    note: Note = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Approve a call: show it, ask, and let its run go on.

    The decision counts for the call that was shown: for its hash. Exit code 6 if the approval was
    decided already.
    """
    output_format = resolve_format(output)
    text = None if arguments is None else read_value("--arguments", arguments)
    edited = parse_object("--arguments", text)
    approval = await find_approval(target, approval_id, db)
    check_decidable(approval, ("approval",), target)
    question = f"Approve this call of {approval['tool_name']}, {target.place}?"
    confirm_call(target, approval, question, seen_hash=hash, yes=yes, edited=edited)
    decision = NewDecision("approve", approval["arguments_hash"], edited, note)
    await send_decision(target, approval, decision, output_format)
