"""Hand-over: a process that ends gives its durable runs to others (docs/decisions/0099)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Literal

from agentctl.runs.life.finish import RETRY_SECONDS
from agentctl.runs.life.live import LiveRun
from agentctl.runs.states import Ending, HandOver, LegEnd, is_final
from agentctl.runs.workers.recovery import return_member, return_tree
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import approvals, events, run_reads, runs
from agentctl.work.tasks import retry_while_unavailable

HandOverOutcome = Literal["handed over", "cancelled", "ended"]

_log = logging.getLogger("agentctl.runs")


async def store_hand_over(
    run: LiveRun, ending: HandOver, on_unavailable: Callable[[], None]
) -> LegEnd:
    """Store that a root run goes on in another process, and retry until the database accepts it.

    Returns:
        The hand-over; or the ending that the run has instead, which the caller stores.
    """
    if run.parent is not None:
        # Its row is that of a run which waits for the next leg of its root.
        return ending
    run.stream.seal()
    if run.recorder is not None:
        await run.recorder.end()
    outcome = await retry_while_unavailable(
        lambda: run.database.write(_write_hand_over(run, lost=ending.lost)),
        seconds=math.inf,
        pauses=RETRY_SECONDS,
        on_unavailable=on_unavailable,
    )
    run.stream.abandon()
    if outcome == "handed over":
        run.database.outbox.wake()
        _log.info("run %s was handed over", run.run_id)
        return ending
    return run.requested_end or Ending.cancelled("system", None)


@unit
def _write_hand_over(run: LiveRun, *, lost: bool) -> Steps[HandOverOutcome]:
    state = yield from run_reads.lock_state(run.run_id)
    if state is None or is_final(state.status):
        return "ended"
    if state.attempt != run.attempt:
        # An earlier attempt of this write may have been committed, or the run was recovered.
        return "handed over"
    if state.cancel_requested_at is not None:
        yield from _return_members(run.run_id)
        return "cancelled"
    if run.recorder is not None and (batch := run.stream.unstored_batch()) is not None:
        yield from events.append_batch(
            run.run_id, run.attempt, batch.first, batch.last, batch.lines
        )
    if lost:
        # As after the death of this process: a call under way is in doubt.
        returned = yield from return_tree(run.database.outbox, run.run_id, state.owner)
        if not returned:
            yield from _return_members(run.run_id)
        return "handed over" if returned else "ended"
    yield from approvals.renew_checkpoint(run.run_id, run.attempt)
    yield from _return_members(run.run_id)
    yield from runs.return_leg(run.run_id, run.attempt, "PENDING")
    return "handed over"


@unit
def _return_members(root_id: str) -> Steps[None]:
    """Let the members whose legs have ended wait: for the next leg of the root, or for its end."""
    for member_id in (yield from approvals.list_checkpoints_below(root_id)):
        member = yield from run_reads.lock_state(member_id)
        if member is not None and member.status == "RUNNING":
            # Its claim raises the attempt once more.
            yield from approvals.renew_checkpoint(member_id, member.attempt + 1)
            yield from return_member(member)
