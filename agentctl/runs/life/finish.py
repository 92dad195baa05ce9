"""The end of a leg: the final status of a run with its results, its pause, or its hand-over.

Each is one transaction with the last events, which is repeated until the database accepts it. A
process that ends hands its durable runs over to others (decision 99).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Literal, TypeVar

from agentctl.config.approvals import Approvals
from agentctl.records.runs import RunEnd
from agentctl.records.times import now
from agentctl.runs.desk.end import End, write_end
from agentctl.runs.life.background import build_summary
from agentctl.runs.life.legs import prepare_pause, write_pause
from agentctl.runs.life.live import LiveRun
from agentctl.runs.log import event_rows
from agentctl.runs.log.results import build_run_end, to_json
from agentctl.runs.states import AlreadyFinished, Ending, HandOver, LegEnd, Pause, is_final
from agentctl.runs.workers.recovery import return_members, return_tree
from agentctl.runtime.failures import DETAILS
from agentctl.runtime.tracing import SpanStatus
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import approvals, events, run_reads, runs
from agentctl.work.event_loop import convert, retry_while_unavailable

T = TypeVar("T")

HISTORY_ALLOWANCE = 8_388_608
"""Bytes by which a checkpoint may exceed `limits.run_bytes`: the history that the run was given."""

_STATE_REJECTED = Ending.failed(
    "STATE_REJECTED", "The run cannot wait: its state is too large, or has no JSON form"
)

RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0)
"""Pauses between attempts to store an end while the database is unavailable.

The last one repeats.
"""

HandOverOutcome = Literal["handed over", "cancelled", "ended"]

_log = logging.getLogger("agentctl.runs")


async def store_end(
    run: LiveRun,
    ending: Ending,
    on_stopped: Callable[[bool], None],
    on_change: Callable[[], None],
    on_unavailable: Callable[[], None],
) -> Ending:
    """Store the end of a run, and retry until the database accepts it.

    Args:
        on_stopped: called once when abandoned work of the run has ended, with True if a late
            result was dropped. Not called if no work was abandoned.
        on_change: called when a part of this work has ended, and the stored names of the rest have
            to be replaced.
        on_unavailable: called after each attempt that the database did not accept.

    Returns:
        The stored ending, which another process may have written.
    """
    await _end_stream(run)

    at = run.finished_at or now()
    span_status: SpanStatus = "failed" if ending.status == "ERROR" else "cancelled"
    run.transcript.spans.end_all(span_status, at)
    if ending.status != "COMPLETED":
        run.transcript.close_open_calls(now())
    if run.component.kind != "workflow" and not run.transcript.messages:
        # The run was stopped before its component started: keep the message in the session.
        run.transcript.add_question(run.spec)

    for pause in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            row = await _build_live_end(run, ending)
            store = partial(_store_or_read_end, run, ending, row)
            stored_ending = await _write_when_available(store, on_unavailable)
            break
        except Exception:
            # The transcript cannot be stored: store the ending without it.
            _log.exception("run %s: its end could not be stored", run.run_id)
            run.discard_transcript()
            run.state_changes = None
            if ending.status == "COMPLETED":
                ending = Ending.failed("INTERNAL", "The result of the run could not be stored")

        await asyncio.sleep(pause)

    if row.stopped_at is None:
        run.transcript.unstopped.notify_when_empty(on_stopped)
        run.transcript.unstopped.notify_changes(on_change)
        if _encode_holding(run) != row.holding:
            # A part of the work has ended since the row was built, which notified nobody.
            on_change()
    else:
        run.transcript.unstopped.has_ended = True

    run.database.announce(run.run_id)
    run.database.outbox.wake()
    return stored_ending


async def store_pause(
    run: LiveRun, pause: Pause, settings: Approvals, on_unavailable: Callable[[], None]
) -> LegEnd:
    """Store the pause of a run, and retry until the database accepts it.

    Returns:
        The stored pause; or the ending that the run has instead, which the caller stores: its
        cancel was requested, too many approvals are pending, or its state cannot be stored.
    """
    await _end_stream(run)
    used = await run.measure_usage()

    try:
        prepared = prepare_pause(run, pause, settings, used)
    except TypeError:
        _log.exception("run %s: its state at the pause has no JSON form", run.run_id)
        return _STATE_REJECTED
    if len(prepared.checkpoint.body) > run.limits.run_bytes + HISTORY_ALLOWANCE:
        return _STATE_REJECTED

    # A write that is interrupted may be committed: the end closes its approvals.
    run.has_asked = True
    outcome = await _write_when_available(
        lambda: run.database.write(write_pause(run, prepared)), on_unavailable
    )

    if outcome == "full":
        return Ending.failed("APPROVALS_FULL", DETAILS["APPROVALS_FULL"])
    if outcome in ("cancelled", "ended"):
        # The end reads the request, or finds what another process has stored.
        return run.requested_end or Ending.cancelled("system", None)

    run.database.outbox.wake()
    return replace(pause, event=prepared.event, continues=outcome == "continues")


async def store_hand_over(
    run: LiveRun, ending: HandOver, on_unavailable: Callable[[], None]
) -> LegEnd:
    """Store that a root run continues in another process, and retry until the database accepts it.

    Returns:
        The hand-over; or the ending that the run has instead, which the caller stores.
    """
    if run.parent is not None:
        # The hand-over of its root lets its row wait for the next leg (`return_members`).
        return ending

    await _end_stream(run)
    outcome = await _write_when_available(
        lambda: run.database.write(_write_hand_over(run, lost=ending.lost)), on_unavailable
    )
    run.stream.abandon()

    if outcome == "handed over":
        run.database.outbox.wake()
        _log.info("run %s was handed over", run.run_id)
        return ending
    return run.requested_end or Ending.cancelled("system", None)


async def _end_stream(run: LiveRun) -> None:
    """Accept no more events of a leg, and wait for the write under way."""
    # Sealed first: a child that ignores its stop may still publish, and the last event has the
    # highest number. Then the write in progress ends, so that the last batch repeats no event.
    if run.parent is None:
        run.stream.seal()
    if run.stream_recorder is not None:
        await run.stream_recorder.end()


async def _write_when_available(
    write: Callable[[], Awaitable[T]], on_unavailable: Callable[[], None]
) -> T:
    """Write the end of a leg, and retry without a time limit while the database is unavailable.

    Args:
        on_unavailable: called after each attempt that the database did not accept.
    """
    return await retry_while_unavailable(
        write, seconds=math.inf, pauses=RETRY_SECONDS, on_unavailable=on_unavailable
    )


async def _store_or_read_end(run: LiveRun, ending: Ending, row: RunEnd) -> Ending:
    """Store an end; if another process has stored one, return that end."""
    member_end: Work[bool] | None = None
    if run.parent is not None and run.parent.journal is not None:
        member_end = run.parent.journal.end_member(run.run_id)

    try:
        return await run.database.write(_write_end(run, ending, row, member_end))
    except AlreadyFinished:
        run.was_ended_elsewhere = True
        if run.parent is None:
            # Its followers get the end that is stored.
            run.stream.abandon()
        state = await run.database.read(run_reads.get_state(run.run_id))
        if state is None or not is_final(state.status):
            return ending
        return Ending.stored(state)


def _build_last_batch(run: LiveRun, ending: Ending, at: int) -> events.Batch:
    last_event = event_rows.format_end(run.identity, ending, run.transcript, at)
    return run.stream.last_batch(last_event)


@unit
def _write_end(
    run: LiveRun, ending: Ending, row: RunEnd, member_end: Work[bool] | None
) -> Steps[Ending]:
    """Write the end and everything that belongs to it; return the ending that is stored.

    CANCELLED requires a recorded request, and the first of several requests counts.

    Args:
        member_end: stores the end of a member in the journal of its parent; None if the parent has
            no journal.

    Raises:
        AlreadyFinished: another process has ended the run, or has it now; nothing is written.
    """
    if member_end is not None:
        yield from member_end

    if ending.status == "CANCELLED":
        ending = yield from _keep_cancel(run, ending)
    if ending.requested_at is not None and ending.requested_at > row.finished_at:
        # The clock of the process that has recorded the request is ahead. The row, the stored event
        # and the published one have the same time.
        run.finished_at = ending.requested_at
        stopped_at = None if row.stopped_at is None else max(row.stopped_at, run.finished_at)
        row = replace(row, finished_at=run.finished_at, stopped_at=stopped_at)

    last_events: events.Batch | None = None
    if run.stream_recorder is not None:
        last_events = _build_last_batch(run, ending, row.finished_at)

    summary: str | None = None
    if ending.status == "COMPLETED":
        summary = build_summary(run)

    # A member that has tried to pause, not only one that is known to be paused: its pause may be
    # committed while this process does not know that yet. If it comes after this end, it finds the
    # status of this run, and is refused.
    members_may_wait = any(child.has_asked for child in run.children)
    has_waited = run.has_asked or run.leg is not None
    durable = run.spec.durable

    end = End(
        row,
        ending,
        last_events=last_events,
        begins_in_doubt=run.begins_in_doubt,
        state_changes=run.state_changes,
        summary=summary,
        message_ids=run.transcript.message_ids,
        may_wait=durable or has_waited or members_may_wait,
        has_journal=durable,
        has_checkpoint=run.has_checkpoint,
    )
    run.lets_begin = yield from write_end(run.database.outbox, end)
    return ending


def _keep_cancel(run: LiveRun, ending: Ending) -> Steps[Ending]:
    """Record the request of a cancelled run, and return its end by the first request."""
    actor = ending.actor or "system"
    state = yield from run_reads.lock_state(run.run_id)
    if state is None or state.attempt != run.attempt:
        # Another process has this run now: the request would end its leg.
        raise AlreadyFinished

    yield from runs.request_cancel(run.run_id, now(), actor, ending.reason, claimed=True)
    state = yield from run_reads.get_state(run.run_id)
    return ending if state is None else Ending.requested(state, actor)


async def _build_live_end(run: LiveRun, ending: Ending) -> RunEnd:
    """Build the final columns of a run from its transcript."""
    at = run.finished_at or now()
    holding = _encode_holding(run)
    stopped_at: int | None = None
    if holding is None:
        # Work that continued after the end of the run may have ended meanwhile.
        stopped_at = max(at, now()) if run.transcript.unstopped.had_work else at

    build = partial(
        build_run_end,
        run.spec,
        run.attempt,
        ending,
        run.transcript,
        previous_instructions=run.previous_instructions,
        finished_at=at,
        stopped_at=stopped_at,
        holding=holding,
        cost=await run.measure_cost(),
    )
    # In a thread the steps of a large run take turns with other runs. Nothing changes its
    # transcript any more.
    return await convert(build, run.transcript.size)


def _encode_holding(run: LiveRun) -> str | None:
    """Return the names of the work that continues as a JSON array; None if all has ended."""
    names = run.transcript.unstopped.names
    return to_json(names) if names else None


@unit
def _write_hand_over(run: LiveRun, *, lost: bool) -> Steps[HandOverOutcome]:
    state = yield from run_reads.lock_state(run.run_id)
    if state is None or is_final(state.status):
        return "ended"
    if state.attempt != run.attempt:
        # An earlier attempt of this write may have been committed, or the run was recovered.
        return "handed over"
    if state.cancel_requested_at is not None:
        yield from return_members(run.database.outbox, run.run_id)
        return "cancelled"

    if run.stream_recorder is not None:
        batch = run.stream.unstored_batch()
        if batch is not None:
            yield from events.append_batch(run.run_id, *batch[1:])

    if lost:
        # As after the death of this process: a call under way is in doubt.
        is_returned = yield from return_tree(run.database.outbox, run.run_id, state.owner)
        if not is_returned:
            yield from return_members(run.database.outbox, run.run_id)
        return "handed over" if is_returned else "ended"

    yield from approvals.renew_checkpoint(run.run_id, run.attempt)
    yield from return_members(run.database.outbox, run.run_id)
    yield from runs.return_leg(run.run_id, run.attempt, "PENDING")
    return "handed over"
