"""`agentctl runs messages`: the messages that were sent to a run."""

from __future__ import annotations

from agentctl.cli import options
from agentctl.cli.show import columns
from agentctl.cli.show.output import FieldsOutput
from agentctl.cli.target import Target, with_target
from agentctl.interface.operations import Operations
from agentctl.records.run_messages import RunMessageRecord


@with_target()
async def list_messages(target: Target, out: FieldsOutput, run_id: options.RunId) -> None:
    """List the messages that were sent to a run, each with its fate.

    The status of a message is waiting until it is delivered, becomes the next run of the session,
    or is refused.
    """
    messages = await _read_messages(target.operations, run_id)
    out.show_list(messages, columns.RUN_MESSAGES, "message_id")


async def _read_messages(operations: Operations, run_id: str) -> list[RunMessageRecord]:
    """Return all messages to a run, in the order of their sending."""
    messages = list[RunMessageRecord]()
    last_id: str | None = None
    while True:
        page = (await operations.runs.list_messages(run_id, after=last_id)).value
        messages += page["messages"]
        if not page["messages"] or len(messages) >= page["total"]:
            return messages
        last_id = messages[-1]["message_id"]
