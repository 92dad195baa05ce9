"""`agentctl approvals answer`: answer the question of a run."""

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
from agentctl.cli.questions import ask_value
from agentctl.cli.show.approvals import describe_call
from agentctl.cli.show.output import resolve_format
from agentctl.cli.show.terminal import check_confirmable
from agentctl.cli.show.terminal import note as write_note
from agentctl.cli.target import Target, with_target
from agentctl.requests.approvals import NewDecision


@with_target()
async def answer_question(
    target: Target,
    approval_id: ApprovalId,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            metavar="VALUE",
            help="The answer, JSON or text (- reads stdin, @FILE a file); without it a terminal"
            " asks",
        ),
    ] = None,
    note: Note = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Answer the question of a run, which then goes on."""
    output_format = resolve_format(output)
    hint = "pass --answer VALUE"
    check_confirmable(yes=answer is not None, what="an answer is", hint=hint)
    text = None if answer is None else read_value("--answer", answer)
    approval = await find_approval(target, approval_id, db)
    check_decidable(approval, ("input",), target)
    if text is not None:
        value = parse_value(text, approval["schema"])
    elif approval["status"] == "pending":
        for line in describe_call(dict(approval)):
            write_note(line)
        value = ask_value("answer", approval["schema"])
    else:
        value = None
    await send_decision(
        target, approval, NewDecision("answer", note=note, answer=value), output_format
    )
