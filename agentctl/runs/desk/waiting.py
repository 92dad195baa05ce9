"""Runs that wait before or between two legs, while nothing of them executes.

A run waits for a decision between two legs, or in the queue of its session before the first one
(docs/queue.md). When it has its turn (`store/repositories/queue.py`), any server begins it from its
checkpoint.
"""

from __future__ import annotations

from agentctl.records.runs import RunRow, RunState
from agentctl.records.times import now
from agentctl.runs.desk.end import EndedRun, cancel_waiting_run, end_waiting_run
from agentctl.runs.log.event_rows import encode_event
from agentctl.runs.log.fold import find_root_id
from agentctl.runs.states import Ending, is_final
from agentctl.store.database import Steps, Work, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, queue, run_reads, runs

QUEUE_TIMEOUT = Ending.failed("QUEUE_TIMEOUT", "The run waited too long in the queue")
"""The end of a run that did not get its turn in time."""


@unit
def lock_queue(state: RunState | None) -> Steps[None]:
    """Lock the session of a run that waits for its turn, before the row of the run.

    The end of another run locks this session, and then the row of the run that begins next.
    """
    if state is not None and state.queue_turn is not None:
        yield from queue.lock_session(state.session_id)


@unit
def end_overdue_run(outbox: Outbox, run_id: str, before: int) -> Steps[EndedRun | None]:
    """End a run as ERROR if it has waited in the queue for too long.

    Args:
        before: the run ends if it waits since this time or longer, microseconds UTC.

    Returns:
        None, without a change, if it has begun.
    """
    # The session first, as the end of another run locks both; then the row is read again.
    state = yield from run_reads.get_state(run_id)
    yield from lock_queue(state)
    run = yield from run_reads.get_for_update(run_id)

    if run is None or run.queue_turn is None:
        return None
    if run.queued_at is None or run.queued_at > before:
        return None
    return (yield from end_waiting_run(outbox, run, QUEUE_TIMEOUT))


@unit
def cancel_run(
    outbox: Outbox, run_id: str, actor: str, reason: str | None
) -> Steps[tuple[RunState, RunState] | None]:
    """Record the cancel of a run, and end it at once if nothing executes it.

    A run that has ended is read without a lock. The state of any other run is read again when its
    row is locked. So the run cannot pause between that read and the request, which no process would
    carry out then.

    Args:
        actor: the principal that cancels.
        reason: shown with the end of the run; None without one.

    Returns:
        The state before the request and after it; None if there is no such run.
    """
    before = yield from run_reads.get_state(run_id)
    if before is None:
        return None
    if is_final(before.status):
        return before, before

    # The session of a queued run, its root run, and the run itself: the order in which ends and
    # decisions lock them.
    yield from lock_queue(before)
    root_id = yield from find_root_id(before)
    yield from run_reads.lock_state(root_id)
    before = yield from run_reads.lock_state(run_id)
    if before is None:
        return None
    if is_final(before.status):
        return before, before

    if before.status == "RUNNING":
        # Its worker ends it.
        yield from runs.request_cancel(run_id, now(), actor, reason)
    else:
        ended_run = yield from cancel_waiting_run(outbox, run_id, actor, reason, now())
        if ended_run is not None and root_id != run_id:
            # The root run may have waited for this member only.
            yield from release_if_decided(root_id)

    after = yield from run_reads.get_state(run_id)
    return before, after or before


def append_event(run: RunRow, seq: int, event: tuple[str, bytes]) -> Work[bool]:
    """Store one event of a run that no process executes."""
    return events.append_batch(run.run_id, run.attempt, seq, seq, encode_event(*event))


@unit
def release_if_decided(root_run_id: str) -> Steps[bool]:
    """Let a root run continue if nothing that it waits for is pending; its row is locked first.

    Returns:
        True if a process may claim its next leg.
    """
    state = yield from run_reads.lock_state(root_run_id)
    if state is None or state.status != "PAUSED":
        return False

    # Under the lock: of two last decisions at the same time, the second one finds none pending.
    pending_count = yield from approvals.count_pending_of_root(root_run_id)
    if pending_count:
        return False
    return (yield from runs.release(root_run_id))
