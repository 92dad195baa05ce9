"""Runs that wait before or between two legs, while nothing of them executes: how they end."""

from __future__ import annotations

import orjson

from agentctl.records.times import now
from agentctl.runs.log import event_format
from agentctl.runs.log.event_rows import encode_event
from agentctl.runs.log.replay import find_root_id
from agentctl.runs.log.results import build_run_end, build_unfinished_transcript, store_question
from agentctl.runs.states import Ending, is_final
from agentctl.runtime.journal import rebuild
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, Work, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, queue, run_reads, runs, steps
from agentctl.store.repositories.run_rows import RunEnd, RunRow, RunState
from agentctl.webhooks.facts import publish_run

QUEUE_TIMEOUT = Ending.failed("QUEUE_TIMEOUT", "The run waited too long in the queue")


@unit
def lock_queue(run_id: str) -> Steps[None]:
    """Lock the session of a run that waits for its turn, before the row of the run.

    The end of another run locks this session, and then the row of the run that begins next.
    """
    state = yield from run_reads.get_state(run_id)
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

    checkpoint = yield from approvals.load_checkpoint(run_id)
    body = None
    if checkpoint is not None:
        journal = yield from steps.list_of_run(run_id)
        body = rebuild(orjson.loads(checkpoint.body), journal, ends=True)

    row = yield from run_reads.get_for_update(run_id)
    assert row is not None
    if body is None:
        transcript = build_unfinished_transcript(row, row.content or "")
    else:
        transcript = Transcript.from_json(body["transcript"])
        if not transcript.messages and row.component_type != "workflow":
            transcript.add_user(row.input)
    transcript.close_open_calls(at)
    transcript.spans.end_all("failed" if ending.status == "ERROR" else "cancelled", at)

    if row.parent_run_id is None and (last := (yield from events.get_last_seq(run_id))) >= 0:
        identity = event_format.identify_run(row, (body or {}).get("component_name"))
        event = event_format.format_end(identity, ending, transcript, at)
        yield from append_event(row, last + 1, event)

    previous = (body or {}).get("previous_instructions")
    end: RunEnd = build_run_end(
        row,
        row.attempt,
        ending,
        transcript,
        previous_instructions=previous,
        finished_at=at,
        stopped_at=at,
    )

    ended = yield from runs.finish(end)
    yield from close_approvals(run_id, ending.actor or "system", at)
    return ended is not None


@unit
def end_overdue_run(outbox: Outbox, run_id: str, before: int) -> Steps[bool]:
    """End a run that has waited in the queue since a time as ERROR; False if it has begun."""
    yield from lock_queue(run_id)
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

    Its row is locked before its state is read, after that of its session if it is queued, and after
    that of its root run, as for a decision. So it cannot pause between the read and the request,
    which no process would carry out then.

    Returns:
        The state before the request and after it; None if there is no such run.
    """
    before = yield from run_reads.get_state(run_id)
    if before is None:
        return None
    if is_final(before.status):
        return before, before

    if before.queue_turn is not None:
        yield from queue.lock_session(before.session_id)
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
    """Record the cancel of a run that waits, and end it at once."""
    yield from lock_queue(run_id)
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
