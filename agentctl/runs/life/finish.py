"""The end of a leg: the final status of a run with its results, its pause, or its hand-over.

Each is one transaction with the last events, which is repeated until the database accepts it. A
process that ends hands its durable runs over to others (docs/decisions/0099).

Background work follows an end: the summary of the session, and memories of its user. It is a run
with a purpose, a child of the run after which it is done. So it is listed, cancelled, drained,
counted and recovered like every run. The transaction that creates it locks the session: a session
has at most one live run of each purpose, with any number of servers. Work that a dead worker has
left is done again after the next run.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Literal, TypeVar, cast

import orjson

from agentctl import errors
from agentctl.config.settings import Agent, Team
from agentctl.config.upkeep import Approvals
from agentctl.interface.requests import SUMMARY_WAIT
from agentctl.light_dataclass import dataclass
from agentctl.records.run_spec import Purpose, RunSpec
from agentctl.records.runs import FinalStatus, RunEnd
from agentctl.records.text import new_id
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.desk.waiting import cancel_waiting_members, close_approvals
from agentctl.runs.life.admission import AdmittedRun, admit_child_run
from agentctl.runs.life.legs import prepare_pause, write_pause
from agentctl.runs.life.live import LiveRun
from agentctl.runs.log import event_rows
from agentctl.runs.log.results import build_run_end, parse_summary, to_json
from agentctl.runs.states import AlreadyFinished, Ending, HandOver, LegEnd, Pause, is_final
from agentctl.runs.workers.recovery import return_members, return_tree
from agentctl.runtime.failures import DETAILS
from agentctl.runtime.transcript.history import MAXIMUM_INPUT, cut_turn
from agentctl.store.database import Database, Steps, Work, single_unit, unit
from agentctl.store.postgres import plain_runs
from agentctl.store.repositories import approvals, events, run_reads, runs, sessions
from agentctl.webhooks.facts import publish_run
from agentctl.work.event_loop import convert, retry_while_unavailable

T = TypeVar("T")

HISTORY_ALLOWANCE = 8_388_608
"""Bytes by which a checkpoint may exceed `limits.run_bytes`: the history that the run was given."""

_STATE_REJECTED = Ending.failed(
    "STATE_REJECTED", "The run cannot wait: its state is too large, or has no JSON form"
)

RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0)
"""Pauses between attempts to store an end while the database is unavailable; the last repeats."""

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
    run.transcript.spans.end_all("failed" if ending.status == "ERROR" else "cancelled", at)
    if ending.status != "COMPLETED":
        run.transcript.close_open_calls(now())
    if run.component.kind != "workflow" and not run.transcript.messages:
        # The run was stopped before its component started: keep the message in the session.
        run.transcript.add_user(run.spec.input, run.spec.files)

    for pause in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            end = await _build_live_end(run, ending)
            store = partial(_store_or_read_end, run, ending, end)
            stored = await _write_when_available(store, on_unavailable)
            break
        except Exception:
            # The transcript cannot be stored: store the ending without it.
            _log.exception("run %s: its end could not be stored", run.run_id)
            run.discard_transcript()
            run.state_changes = None
            if ending.status == "COMPLETED":
                ending = Ending.failed("INTERNAL", "The result of the run could not be stored")
        await asyncio.sleep(pause)

    if end.stopped_at is None:
        run.transcript.unstopped.notify_when_empty(on_stopped)
        run.transcript.unstopped.notify_changes(on_change)
        if _encode_holding(run) != end.holding:
            on_change()
    else:
        run.transcript.unstopped.has_ended = True

    run.database.announce(run.run_id)
    run.database.outbox.wake()
    return stored


async def store_pause(
    run: LiveRun, pause: Pause, settings: Approvals, on_unavailable: Callable[[], None]
) -> LegEnd:
    """Store the pause of a run, and retry until the database accepts it.

    Returns:
        The stored pause; or the ending that the run has instead: its cancel was requested, too many
        approvals are pending, or its state cannot be stored. The caller stores that one.
    """
    await _end_stream(run)
    try:
        prepared = replace(prepare_pause(run, pause, settings), used=await run.measure_usage())
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
    """Store that a root run goes on in another process, and retry until the database accepts it.

    Returns:
        The hand-over; or the ending that the run has instead, which the caller stores.
    """
    if run.parent is not None:
        # Its row is that of a run which waits for the next leg of its root.
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
    """Accept no more events of a leg, and end the writes of those that it has."""
    # Sealed first: a child that ignores its stop may still publish, and the last event has the
    # highest number. Then the write in progress ends, so that the last batch repeats no event.
    if run.parent is None:
        run.stream.seal()
    if run.recorder is not None:
        await run.recorder.end()


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


async def _store_or_read_end(run: LiveRun, ending: Ending, end: RunEnd) -> Ending:
    try:
        journal = None if run.parent is None else run.parent.journal
        kept = None if journal is None else journal.end_member(run.run_id)
        work = _write_end(run, ending, end, kept)
        if _is_plain(run, ending):
            work = work.with_shortcut(_write_plain_end(run, ending, end))
        return await run.database.write(work)
    except AlreadyFinished:
        if run.parent is None:
            run.stream.abandon()
        state = await run.database.read(run_reads.get_state(run.run_id))
        if state is None or not is_final(state.status):
            return ending
        return Ending(
            cast(FinalStatus, state.status),
            error_code=state.error_code,
            error_detail=state.error_detail,
            actor=state.cancel_requested_by,
            reason=state.cancel_reason,
            requested_at=state.cancel_requested_at,
        )


def _is_plain(run: LiveRun, ending: Ending) -> bool:
    """Return True if the end of a run has nothing to write but its rows and its events."""
    return (
        ending.status != "CANCELLED"
        and run.leg is None
        and not (run.has_checkpoint or run.has_asked)
        and run.state_changes is None
        and run.spec.purpose is None
        and not any(child.is_paused for child in run.children)
        and (run.parent is not None or not run.database.outbox.is_used)
    )


@single_unit
def _write_plain_end(run: LiveRun, ending: Ending, end: RunEnd) -> Steps[Ending | None]:
    last = None if run.recorder is None else _build_last_batch(run, ending, end)
    return ending if (yield from plain_runs.end(end, last)) else None


def _build_last_batch(run: LiveRun, ending: Ending, end: RunEnd) -> events.Batch:
    last = event_rows.format_end(run.identity, ending, run.transcript, end.finished_at)
    return run.stream.last_batch(last)


@unit
def _write_end(run: LiveRun, ending: Ending, end: RunEnd, kept: Work[bool] | None) -> Steps[Ending]:
    """Write the end and everything that belongs to it.

    Args:
        kept: what the journal of the parent keeps of a member; None for nothing.

    CANCELLED requires a recorded request, and the first of several requests counts. The last
    events are stored in the same transaction, so a run with a final status has all its events:
    a follower in another process needs no second rule.
    """
    if kept is not None:
        yield from kept
    # The row of the run is locked first, that of its session by `finish` (`store.database`).
    if ending.status == "CANCELLED":
        ending = yield from _keep_cancel(run, ending)

    if run.recorder is not None:
        # Before `finish`: events of a run that is final are refused.
        last = _build_last_batch(run, ending, end)
        yield from events.append_batch(run.run_id, *last[1:])

    finished = yield from runs.finish(end)
    if finished is None:
        # Another process has ended the run: the events of this transaction are undone as well.
        raise AlreadyFinished

    run.lets_begin = finished.advanced
    durable = run.spec.durable
    may_wait = run.has_asked or run.leg is not None
    if durable or may_wait or any(child.is_paused for child in run.children):
        yield from cancel_waiting_members(run.run_id, end.finished_at)
        yield from close_approvals(
            run.run_id, ending.actor or "system", end.finished_at, durable=durable
        )
    elif run.has_checkpoint:
        yield from approvals.drop_checkpoint(run.run_id)

    if ending.status == "COMPLETED" and (summary := build_summary(run)) is not None:
        yield from sessions.set_summary(run.spec.session_id, summary)
    if (changes := run.state_changes) is not None:
        yield from sessions.merge_state(run.spec.session_id, changes.values, changes.removed)
    if run.parent is None:
        yield from publish_run(run.database.outbox, run.run_id)
    return ending


def _keep_cancel(run: LiveRun, ending: Ending) -> Steps[Ending]:
    """Record the request of a cancelled run, and return its end by the first request."""
    actor = ending.actor or "system"
    state = yield from run_reads.lock_state(run.run_id)
    if state is None or state.attempt != run.attempt:
        # Another process has this run now: the request would end its leg.
        raise AlreadyFinished
    yield from runs.request_cancel(run.run_id, now(), actor, ending.reason, claimed=True)
    requested = yield from run_reads.get_state(run.run_id)
    if requested is None:
        return ending
    return Ending.cancelled(
        requested.cancel_requested_by or actor,
        requested.cancel_reason,
        requested.cancel_requested_at,
    )


async def _build_live_end(run: LiveRun, ending: Ending) -> RunEnd:
    at = run.finished_at or now()
    holding = _encode_holding(run)
    # What went on at the end of the run may have ended meanwhile.
    stopped_at = max(at, now()) if run.transcript.unstopped.had_work else at
    build = partial(
        build_run_end,
        run.spec,
        run.attempt,
        ending,
        run.transcript,
        previous_instructions=run.previous_instructions,
        finished_at=at,
        stopped_at=stopped_at if holding is None else None,
        holding=holding,
    )
    # In a thread the steps of a large run take turns with other runs. Nothing changes its
    # transcript any more.
    return await convert(build, run.transcript.size)


def _encode_holding(run: LiveRun) -> str | None:
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
        yield from return_members(run.run_id)
        return "cancelled"
    if run.recorder is not None and (batch := run.stream.unstored_batch()) is not None:
        yield from events.append_batch(run.run_id, *batch[1:])
    if lost:
        # As after the death of this process: a call under way is in doubt.
        returned = yield from return_tree(run.database.outbox, run.run_id, state.owner)
        if not returned:
            yield from return_members(run.run_id)
        return "handed over" if returned else "ended"
    yield from approvals.renew_checkpoint(run.run_id, run.attempt)
    yield from return_members(run.run_id)
    yield from runs.return_leg(run.run_id, run.attempt, "PENDING")
    return "handed over"


MAXIMUM_TURNS = 100
"""Turns in the input of one summary."""

KNOWN_MEMORIES = 20
"""Memories in the input of an extraction."""


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """The input of a summary.

    Attributes:
        prompt: the summary so far and the turns after it.
        covered: the number of that run in its session.
    """

    prompt: str
    last_run_id: str
    covered: int


def build_summary(run: LiveRun) -> str | None:
    """Return the summary that a run has made as JSON text; None if it made none."""
    if run.spec.purpose != "summary" or not (text := run.transcript.content.strip()):
        return None
    summary = {
        "summary": text,
        "updated_at": format_rfc3339(run.finished_at or now()),
        "covered_runs": run.spec.covered,
    }
    return orjson.dumps(summary).decode()


def requires_background_work(run: LiveRun) -> bool:
    """Return True for a root run whose component has a setting for background work.

    Also for one whose conversation fills the context window of its model: later runs get the
    summary in place of the messages that do not fit.
    """
    spec = run.component.spec
    if run.parent is not None or run.spec.purpose is not None or not isinstance(spec, Agent | Team):
        return False
    return (
        run.transcript.is_full or bool(spec.summary.every_runs) or spec.memory.mode == "after_run"
    )


async def plan_background_runs(run: LiveRun) -> list[RunSpec]:
    """Return the background runs that a completed run requires (`requires_background_work`).

    These are a summary of its session, an extraction of memories, both or none.
    """
    spec = run.component.spec
    assert isinstance(spec, Agent | Team)

    planned = [await _plan_summary_run(run, spec), await _plan_memory_run(run, spec)]
    return [each for each in planned if each is not None]


async def _plan_summary_run(run: LiveRun, spec: Agent | Team) -> RunSpec | None:
    every = spec.summary.every_runs
    room = run.transcript.room
    is_full = run.transcript.is_full
    if not every and not is_full:
        return None

    # A character has at most four bytes, and a token about three.
    maximum = min(MAXIMUM_INPUT, room // 2) if room else MAXIMUM_INPUT
    plan = await plan_summary(run.database, run.spec.session_id, maximum)
    if plan is None:
        return None

    new_turns, summary = plan
    if not is_full and new_turns < every:
        return None
    return build_background_spec(run.spec, "summary", summary)


async def _plan_memory_run(run: LiveRun, spec: Agent | Team) -> RunSpec | None:
    if spec.memory.mode != "after_run" or run.memories is None:
        return None

    known_memories = await run.memories.recall(run.spec.input, limit=KNOWN_MEMORIES)
    lines = [f"- [{memory.memory_id}] {memory.memory}" for memory in known_memories]
    facts = "\n".join(lines) or "(none)"
    turn = _format_turn(run.spec.input, run.transcript.content)
    prompt = f"Known facts:\n{facts}\n\n{turn}"
    return build_background_spec(run.spec, "memory", SummaryPlan(prompt, run.run_id, 0))


async def plan_summary(
    database: Database, session_id: str, maximum: int = MAXIMUM_INPUT
) -> tuple[int, SummaryPlan] | None:
    """Return the number of new turns of a session and the plan of its summary; None if none is new.

    Turns that do not fit are left for the next summary.

    Args:
        maximum: characters of the input.
    """
    last = parse_summary(await database.read(sessions.get_summary(session_id)))
    turns = await database.read(run_reads.list_turns(session_id, last.covered, MAXIMUM_TURNS))
    if not turns:
        return None

    parts = [f"Summary so far:\n{last.text}"] if last.text else []
    size = sum(map(len, parts))
    used = turns[0]
    for number, turn in enumerate(turns):
        text = _format_turn(turn.input, turn.content)
        size += len(text)
        if number and size > maximum:
            break
        parts.append(text)
        used = turn

    return len(turns), SummaryPlan("\n\n".join(parts)[:maximum], used.run_id, used.seq)


def build_background_spec(base: RunSpec, purpose: Purpose, plan: SummaryPlan) -> RunSpec:
    """Return the specification of background work; `base` is that of any run of the session."""
    return replace(
        base,
        run_id=new_id(),
        parent_run_id=plan.last_run_id,
        input=plan.prompt,
        input_object=None,
        files=None,
        background=True,
        recorded=False,
        survives_disconnect=True,
        time_limit=min(base.time_limit, SUMMARY_WAIT),
        metadata=None,
        output_schema=None,
        client_tools=None,
        tool_choice=None,
        dependencies=None,
        claims=None,
        purpose=purpose,
        covered=plan.covered,
        durable=False,
    )


@unit
def admit_background_run(spec: RunSpec, worker_id: str) -> Steps[AdmittedRun]:
    """Write the row of background work.

    Raises:
        NotFound: the session was deleted meanwhile.
        Conflict: the session has live work of the same purpose.
    """
    # The new row comes first: it locks the session, so that no other one is added meanwhile.
    admitted = yield from admit_child_run(spec, worker_id)
    live = yield from run_reads.list_background_work(spec.session_id, spec.purpose or "")
    if live != [spec.run_id]:
        raise errors.Conflict(f"The session has live work of this purpose: {live[0]}")
    return admitted


def _format_turn(question: str, answer: str | None) -> str:
    return f"User:\n{cut_turn(question)}\n\nAssistant:\n{cut_turn(answer or '(no answer)')}"
