"""The end of a run: one writer for all who end it.

The process that executes a run ends it with the results that it has (`runs/life/finish.py`). Every
other process ends it with what the run has left in the database: a run whose worker died
(`runs/workers/recovery.py`), a waiting run that is cancelled or has waited too long
(`runs/desk/waiting.py`), and the members that wait below a run that ends. All of them fill an
`End`, and `write_end` stores it. A new part of an end belongs here and nowhere else
(decision 96).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agentctl.records.runs import RunEnd, RunRow
from agentctl.records.times import now
from agentctl.runs.desk.messages import settle_messages
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, encode_event
from agentctl.runs.log.fold import FoldedRun, fold_run
from agentctl.runs.log.results import build_run_end, take_counters
from agentctl.runs.states import PARENT_ENDED, AlreadyFinished, Ending, is_final
from agentctl.runtime.tracing import SpanStatus
from agentctl.runtime.transcript.history import StateChanges
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, quotas, run_reads, runs, sessions, steps
from agentctl.store.repositories.events import Batch
from agentctl.webhooks.facts import publish_run


@dataclass(frozen=True, slots=True)
class End:
    """All that the transaction of an end writes.

    `may_wait`, `has_journal` and `has_checkpoint` spare the end of a plain run the statements that
    would find nothing. Their defaults are always correct.
    """

    row: RunEnd
    """The final columns of the row."""

    ending: Ending
    """The status of the row, and who has caused it."""

    last_events: Batch | None = None
    """The last events.

    None for a run whose events are not stored, or are part of the events of its root run.
    """

    is_lost: bool = False
    """True if its worker is considered dead: its later writes are refused."""

    begins_in_doubt: Mapping[str, int] = field(default_factory=dict)
    """The times of begins of approved calls that may be committed, by the ids of the approvals.

    Their calls were not made.
    """

    state_changes: StateChanges | None = None
    """The changes of a root run to the state of its session."""

    summary: str | None = None
    """The summary of the session that the run has made, as JSON text."""

    message_ids: Collection[str] | None = None
    """The ids of the sent messages that are part of the run; None if that is not known."""

    may_wait: bool = True
    """False if neither the run nor a member below it can have asked for anything."""

    has_journal: bool = True
    """False if the run is not durable."""

    has_checkpoint: bool = True
    """False if neither a pause nor the start has stored a checkpoint."""


@unit
def write_end(outbox: Outbox, end: End) -> Steps[bool]:
    """Store the end of a run with everything that belongs to it.

    The row of the run is locked first, the row of its session second (`store.database`). The last
    events are stored in the same transaction, so a run with a final status has all its events: a
    follower in another process needs no second rule.

    Returns:
        True if another run of the session may begin now.

    Raises:
        AlreadyFinished: the run has ended, was deleted, or has another attempt. What the
            transaction has written before must be undone.
    """
    run_id = end.row.run_id
    at = end.row.finished_at
    if end.last_events is not None:
        # Before the row: events of a run that is final are refused.
        yield from events.append_batch(run_id, *end.last_events[1:])

    finished = yield from runs.finish(end.row, lost=end.is_lost)
    if finished is None:
        raise AlreadyFinished

    for approval_id, began_at in end.begins_in_doubt.items():
        # Before the approvals are closed, when an executing call gets an unknown outcome.
        yield from approvals.forget_begin(approval_id, began_at)

    if end.may_wait:
        yield from _cancel_waiting_members(outbox, run_id, at)
        actor = end.ending.actor or "system"
        yield from close_approvals(run_id, actor, at, durable=end.has_journal)
    elif end.has_checkpoint:
        yield from approvals.drop_checkpoint(run_id)

    if end.summary is not None:
        yield from sessions.set_summary(finished.session_id, end.summary)
    if end.state_changes is not None:
        changes = end.state_changes
        yield from sessions.merge_state(finished.session_id, changes.values, changes.removed)
    if finished.is_root:
        yield from publish_run(outbox, run_id)

    if not finished.has_messages:
        return finished.advanced
    may_begin = yield from settle_messages(run_id, end.ending, at, end.message_ids)
    return may_begin or finished.advanced


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


class EndedRun(NamedTuple):
    """A run that was ended while no process executed it."""

    run: RunRow
    """Its row before the end."""

    ending: Ending

    transcript: Transcript
    """The results that it had left, with which it ended."""


@unit
def end_stored_run(
    outbox: Outbox,
    run: RunRow,
    ending: Ending,
    *,
    is_lost: bool = False,
    may_still_run: bool = False,
) -> Steps[EndedRun]:
    """End a run that no process executes, with the results that it has left.

    Args:
        run: its row, which is locked. For CANCELLED it has a cancel request.
        is_lost: True if its worker died. The reason of `ending` replaces the reason of the cancel
            request then.
        may_still_run: True if its work may continue: the time of its stop stays unknown.

    Returns:
        The row before the end, the end, and the results with which the run ended.

    Raises:
        AlreadyFinished: the row was not locked, and another process has ended the run.
    """
    # Not before any other time of the row: a clock may be behind that of another machine, and the
    # last event has the time that the row gets.
    began_at = max(run.created_at, run.started_at or 0, run.queued_at or 0)
    at = max(now(), began_at, run.cancel_requested_at or 0)

    folded_run = yield from fold_run(run, at)
    transcript = folded_run.transcript
    take_counters(transcript, (yield from quotas.read_counters(run.run_id)))
    span_status: SpanStatus = "failed" if ending.status == "ERROR" else "cancelled"
    transcript.spans.end_all(span_status, at)

    last_events: Batch | None = None
    state_changes: StateChanges | None = None
    if run.parent_run_id is None:
        last_events = yield from _build_last_events(run, folded_run, ending, at, is_lost=is_lost)
        state_changes = folded_run.state_changes

    row = build_run_end(
        run,
        run.attempt,
        ending,
        transcript,
        previous_instructions=folded_run.previous_instructions,
        finished_at=at,
        stopped_at=None if may_still_run else at,
        cancel_reason=ending.reason if is_lost else None,
    )
    end = End(row, ending, last_events, is_lost=is_lost, state_changes=state_changes)
    yield from write_end(outbox, end)
    return EndedRun(run, ending, transcript)


def _build_last_events(
    run: RunRow, folded_run: FoldedRun, ending: Ending, at: int, *, is_lost: bool
) -> Steps[Batch | None]:
    """Build the last event of a root run; None if its events are not stored."""
    seq = yield from events.get_last_seq(run.run_id)
    if seq < 0:
        return None

    # A worker that died may have delivered events that were never stored.
    has_lost_events = is_lost or folded_run.has_lost_leg
    seq += LOST_SEQ_STEP if has_lost_events else 1
    identity = event_rows.identify_run(run, folded_run.component_name)
    event = event_rows.format_end(identity, ending, folded_run.transcript, at)
    return Batch(run.run_id, run.attempt, seq, seq, encode_event(*event))


@unit
def end_waiting_run(outbox: Outbox, run: RunRow, ending: Ending) -> Steps[EndedRun | None]:
    """End a run that waits or has not begun, and the members that wait below it.

    Args:
        run: its row, which is locked; so is that of its session if it waits for its turn. For
            CANCELLED it has a cancel request; the requests of members are recorded here.

    Returns:
        None, without a change, if the run has ended or executes.
    """
    if is_final(run.status) or run.status == "RUNNING":
        return None
    return (yield from end_stored_run(outbox, run, ending))


@unit
def cancel_waiting_run(
    outbox: Outbox, run_id: str, actor: str, reason: str | None, at: int
) -> Steps[EndedRun | None]:
    """Record the cancel of a run that waits or has not begun, and end it at once.

    Its row is locked, and that of its session if it waits for its turn.

    Returns:
        None if the run has ended or executes, or does not exist.
    """
    yield from runs.request_cancel(run_id, at, actor, reason, claimed=True)
    run = yield from run_reads.get_for_update(run_id)
    if run is None:
        return None

    # The first request counts.
    return (yield from end_waiting_run(outbox, run, Ending.requested(run, actor)))


def _cancel_waiting_members(outbox: Outbox, run_id: str, at: int) -> Steps[None]:
    """Cancel the members that wait below a run that ends; each does the same for its members."""
    actor = PARENT_ENDED.actor or ""
    for member_id in (yield from run_reads.list_paused_children(run_id)):
        yield from cancel_waiting_run(outbox, member_id, actor, PARENT_ENDED.reason, at)
