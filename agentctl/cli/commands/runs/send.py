"""`agentctl runs send`: send a message to a run that works."""

from __future__ import annotations

from typing import Annotated

from agentctl.cli import options
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.parameters import argument, option
from agentctl.cli.show import columns
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.interface.requests import MessageRequest
from agentctl.records.run_messages import LateMessage, RunMessageRecord


@with_target()
async def send_message(
    target: Target,
    out: CommandOutput,
    run_id: options.RunId,
    text: Annotated[str, argument("TEXT", "Message; - reads it from stdin")],
    late: LateMessage = option(
        "--late",
        "FATE",
        "If the run calls no model any more: next_run or refuse",
        default="next_run",
    ),
    idempotency_key: str | None = option(
        "--idempotency-key", "KEY", "Send at most one message; repeating the command shows it"
    ),
) -> None:
    """Send a message to a run in progress.

    The next model call of the run receives the message. If the run makes no further model call, or
    accepts no messages while it works, the message starts the next run of the session or is
    refused, depending on --late.
    """
    request = MessageRequest(read_text_or_stdin(text, "message"), late, idempotency_key)
    document = await target.operations.runs.send_message(run_id, request)
    out.show_record(document, columns.SENT, "message_id")
    _note_fate(target, document.value)


def _note_fate(target: Target, message: RunMessageRecord) -> None:
    if message["next_run_id"] is None:
        target.report_done(f"sent to run {message['run_id']}")
        return
    reason = str(message["reason"])
    target.report_done(f"queued as run {message['next_run_id']}")
    note(f"  {reason[:1].lower()}{reason[1:]}")
