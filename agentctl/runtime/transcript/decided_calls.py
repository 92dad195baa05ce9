"""The calls that people have decided about, each made at most once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentctl.runtime.pauses import CallOutcome, Decided, to_text

if TYPE_CHECKING:
    from agentctl.runtime.context import RunEnvironment


async def perform_decided(
    context: RunEnvironment,
    decision: Decided,
    perform: Callable[[Mapping[str, Any]], Awaitable[CallOutcome]],
    *,
    stores_end: bool = True,
) -> CallOutcome:
    """Return the outcome of a call that was decided about; make it at most once.

    A call that an earlier leg has made is not made again: its result is stored. `executing` is on
    the disk before the call. A call that waits in the middle keeps it until it ends.

    Args:
        perform: makes the call with the approved arguments.
        stores_end: False if the caller stores the end of the call.
    """
    if decision.execution in ("done", "failed"):
        return CallOutcome(to_text(decision.result), failed=decision.execution == "failed")
    if not decision.is_approved:
        return CallOutcome(decision.refusal, failed=True, counts_as_failure=False)
    if decision.execution != "executing":
        # Else an earlier leg has begun the call, and has waited in the middle of it.
        await context.begin_call(decision.approval_id)
    outcome = await perform(decision.arguments)
    if outcome.pause is None and stores_end:
        await context.end_call(decision.approval_id, outcome.text, failed=outcome.failed)
    return outcome
