"""Runs that wait before or between two legs, while nothing of them executes.

A run waits for a decision between two legs, or in the queue of its session before the first one
(docs/queue.md). When it has its turn (`store/repositories/queue.py`), any
server begins it from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl import errors
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunRow, RunState
from agentctl.records.times import now
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import RunIdentity, encode_event
from agentctl.runs.log.fold import find_root_id, fold_row, load_log
from agentctl.runs.log.results import build_run_end, store_question
from agentctl.runs.states import Ending, is_final
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Outbox, Steps, Work, unit
from agentctl.store.repositories import approvals, events, queue, run_reads, runs, steps
from agentctl.webhooks.facts import publish_run

MAXIMUM_IN_SESSION = 20
"""Runs that wait in the queue of one session."""

MAXIMUM_QUEUED = 10_000
"""Runs that wait in the queues of one database."""

QUEUE_TIMEOUT = Ending.failed("QUEUE_TIMEOUT", "The run waited too long in the queue")


@unit
def check_queue(spec: RunSpec) -> Steps[None]:
    """Check that a run may wait in the queue of its session, whose row is locked.

    Raises:
        Conflict: the request has dependencies: another process may begin the run, and they are
            never stored.
        TooManyRequests: the queue is full.
    """
    if spec.dependencies is not None:
        raise errors.Conflict(
            "The run would have to wait, and dependencies are not stored",
            hint="send the request without dependencies, or when the session is idle",
        )
    waiting = yield from queue.count_in_session(spec.session_id, MAXIMUM_IN_SESSION)
    if waiting >= MAXIMUM_IN_SESSION:
        raise errors.TooManyRequests("Too many runs wait in the queue of the session")
    if (yield from queue.count(MAXIMUM_QUEUED)) >= MAXIMUM_QUEUED:
        raise errors.TooManyRequests("Too many runs wait in the queue")


@unit
def enqueue(spec: RunSpec, component_name: str, at: int) -> Steps[bool]:
    """Store the first event of a new run that waits, and let it begin if it may.

    Returns:
        True if a server may claim a run of the session now.
    """
    places = yield from queue.list_positions([spec.run_id])
    identity = RunIdentity(
        spec.run_id, spec.session_id, None, spec.component_type, spec.component_id, component_name
    )
    event, data = event_rows.format_queued(identity, places[spec.run_id], at)
    yield from events.append_batch(spec.run_id, 1, 0, 0, encode_event(event, data))
    return (yield from queue.add(spec.session_id, at))


@unit
def lock_queue(state: RunState | None) -> Steps[None]:
    """Lock the session of a run that waits for its turn, before the row of the run.

    The end of another run locks this session, and then the row of the run that begins next.
    """
    if state is not None and state.queue_turn is not None:
        yield from queue.lock_session(state.session_id)


@unit
def end_waiting_run(run_id: str, ending: Ending) -> Steps[bool]:
    """End a run that waits, and the members that wait below it; nothing of them executes.

    A cancel must have been recorded for CANCELLED; for members it is recorded here. The row of the
    session of a run that waits for its turn is locked.

    Returns:
        False, without a change, if the run has ended or executes.
    """
    state = yield from run_reads.lock_state(run_id)
    if state is None or is_final(state.status) or state.owner is not None:
        return False
    at = max(now(), state.queued_at or 0)
    yield from cancel_waiting_members(run_id, at)

    log = yield from load_log(run_id)
    body: Mapping[str, Any] = {} if log is None else log.fold(ends=True)
    row = yield from run_reads.get_for_update(run_id)
    assert row is not None
    if log is None:
        transcript = fold_row(row)
    else:
        transcript = Transcript.from_json(body["transcript"])
        if not transcript.messages and row.component_type != "workflow":
            transcript.add_user(row.input, row.files)
    transcript.close_open_calls(at)
    return (
        yield from write_end(
            row,
            ending,
            transcript,
            at,
            stopped_at=at,
            component_name=body.get("component_name"),
            seq_step=None if row.parent_run_id is not None else 1,
            previous_instructions=body.get("previous_instructions"),
        )
    )


@unit
def write_end(
    run: RunRow,
    ending: Ending,
    transcript: Transcript,
    at: int,
    *,
    stopped_at: int | None,
    component_name: str | None,
    seq_step: int | None,
    previous_instructions: str | None = None,
    lost: bool = False,
) -> Steps[bool]:
    """Write the end of a run that no process executes, and its last event for its followers.

    Args:
        transcript: without open calls.
        stopped_at: None if its work may continue.
        component_name: the name in its earlier events: it may not be configured here.
        seq_step: the distance of the number of the event to that of the one before it; None for a
            run whose events are part of the stream of another one.
        lost: True if its worker died. The reason of `ending` replaces that of the request then.

    Returns:
        False if it has ended meanwhile.
    """
    transcript.spans.end_all("failed" if ending.status == "ERROR" else "cancelled", at)
    if seq_step is not None and (last := (yield from events.get_last_seq(run.run_id))) >= 0:
        identity = event_rows.identify_run(run, component_name)
        event = event_rows.format_end(identity, ending, transcript, at)
        yield from append_event(run, last + seq_step, event)
    end = build_run_end(
        run,
        run.attempt,
        ending,
        transcript,
        previous_instructions=previous_instructions,
        finished_at=at,
        stopped_at=stopped_at,
        cancel_reason=ending.reason if lost else None,
    )
    ended = yield from runs.finish(end, lost=lost)
    yield from close_approvals(run.run_id, ending.actor or "system", at)
    return ended is not None


@unit
def end_overdue_run(outbox: Outbox, run_id: str, before: int) -> Steps[bool]:
    """End a run that has waited in the queue since a time as ERROR; False if it has begun."""
    yield from lock_queue((yield from run_reads.get_state(run_id)))
    state = yield from run_reads.get_state(run_id)
    if state is None or state.queue_turn is None or (state.queued_at or before + 1) > before:
        return False
    ended = yield from end_waiting_run(run_id, QUEUE_TIMEOUT)
    if ended:
        yield from publish_run(outbox, run_id)
    return ended


@unit
def cancel_run(
    outbox: Outbox, run_id: str, actor: str, reason: str | None
) -> Steps[tuple[RunState, RunState] | None]:
    """Record the cancel of a run, and end it at once if nothing executes it.

    A run that has ended is read without a lock. The state of any other is read again when its row
    is locked, after that of its session if it is queued, and after that of its root run, as for a
    decision. So it cannot pause between that read and the request, which no process would carry out
    then.

    Returns:
        The state before the request and after it; None if there is no such run.
    """
    before = yield from run_reads.get_state(run_id)
    if before is None:
        return None
    if is_final(before.status):
        return before, before

    yield from lock_queue(before)
    root_id = yield from find_root_id(before)
    yield from run_reads.lock_state(root_id)
    before = yield from run_reads.lock_state(run_id)
    if before is None:
        return None
    if is_final(before.status):
        return before, before

    has_ended = False
    if before.owner is None:
        has_ended = yield from cancel_waiting_run(run_id, actor, reason, now())
        if has_ended and root_id != run_id:
            yield from release_if_decided(root_id)
    else:
        updated = yield from runs.request_cancel(run_id, now(), actor, reason)
        if updated is not None and is_final(updated.status):
            has_ended = True
            yield from store_question(updated)
            yield from approvals.drop_checkpoint(run_id)

    if has_ended:
        yield from publish_run(outbox, run_id)
    return before, (yield from run_reads.get_state(run_id)) or before


def append_event(run: RunRow, seq: int, event: tuple[str, bytes]) -> Work[bool]:
    """Store one event of a run that no process executes."""
    return events.append_batch(run.run_id, run.attempt, seq, seq, encode_event(*event))


@unit
def cancel_waiting_run(run_id: str, actor: str, reason: str | None, at: int) -> Steps[bool]:
    """Record the cancel of a run that waits, and end it at once.

    Its row is locked, and that of its session if it waits for its turn.
    """
    yield from runs.request_cancel(run_id, at, actor, reason, claimed=True)
    state = yield from run_reads.get_state(run_id)
    if state is None:
        return False
    ending = Ending.cancelled(
        state.cancel_requested_by or actor, state.cancel_reason, state.cancel_requested_at
    )
    return (yield from end_waiting_run(run_id, ending))


@unit
def release_if_decided(root_run_id: str) -> Steps[bool]:
    """Let a root run go on if nothing that it waits for is pending; its row is locked first.

    Returns:
        True if a process may claim its next leg.
    """
    state = yield from run_reads.lock_state(root_run_id)
    if state is None or state.status != "PAUSED":
        return False
    if (yield from approvals.count_pending_of_root(root_run_id)):
        return False
    return (yield from runs.release(root_run_id))


@unit
def cancel_waiting_members(run_id: str, at: int) -> Steps[None]:
    """End the members that wait below a run that ends."""
    for member_id in (yield from run_reads.list_paused_children(run_id)):
        yield from cancel_waiting_run(member_id, "system:parent", "The parent run ended", at)


@unit
def close_approvals(run_id: str, actor: str, at: int, *, durable: bool = True) -> Steps[None]:
    """Close what a run that has ended waited for; delete its checkpoint and its journal.

    Args:
        durable: False if the run has no journal.
    """
    yield from approvals.mark_unknown(run_id)
    yield from approvals.cancel_pending(run_id, actor, at)
    yield from approvals.drop_checkpoint(run_id)
    if durable:
        yield from steps.drop(run_id)
