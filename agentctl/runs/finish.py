"""The end of a run: its final status, its results and its last events, in one transaction.

Also builds the results of runs that did not execute to their end: those that never started, and
those of a dead worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from typing import cast

import orjson

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import FinalStatus
from agentctl.records.text import replace_unstorable
from agentctl.records.times import now, whole_seconds
from agentctl.runs import event_format
from agentctl.runs.background import build_summary
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending
from agentctl.runtime.bounds import convert
from agentctl.runtime.transcript import Transcript, build_chat_history
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, run_reads, runs, sessions
from agentctl.store.repositories.run_rows import RunEnd, RunRow

RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0)
"""Pauses between attempts to store an end while the database is unavailable; the last repeats."""

_log = logging.getLogger("agentctl.runs")
_rate_limited = RateLimitedLog(_log)


class AlreadyFinished(Exception):
    """Rolls back an end: the run already has another final status, or its row was deleted."""


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
    # Sealed first: a child that ignores its stop may still publish, and the last event has the
    # highest number. Then the write in progress ends, so that the last batch repeats no event.
    if run.parent is None:
        run.stream.seal()
    if run.recorder is not None:
        await run.recorder.end()
    at = run.finished_at or now()
    run.transcript.spans.end_all("failed" if ending.status == "ERROR" else "cancelled", at)
    if ending.status != "COMPLETED":
        run.transcript.close_open_calls(now())
    if run.component.kind != "workflow" and not run.transcript.messages:
        # The run was stopped before its component started: keep the message in the session.
        run.transcript.add_user(run.spec.input)
    end: RunEnd | None = None
    for pause in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            if end is None:
                end = await _build_live_end(run, ending)
            stored = await _store_or_read_end(run, ending, end)
        except errors.Unavailable:
            _rate_limited.log("ends of runs could not be stored yet")
            on_unavailable()
        except Exception:
            # The transcript cannot be stored: store the ending without it.
            _log.exception("run %s: its end could not be stored", run.run_id)
            run.discard_transcript()
            run.state_changes = end = None
            if ending.status == "COMPLETED":
                ending = Ending.failed("INTERNAL", "The result of the run could not be stored")
        else:
            if end.stopped_at is None:
                run.transcript.unstopped.notify_when_empty(on_stopped)
                run.transcript.unstopped.notify_changes(on_change)
                if _encode_holding(run) != end.holding:
                    on_change()
            return stored
        await asyncio.sleep(pause)
    raise AssertionError("unreachable: the pauses repeat for ever")


async def _store_or_read_end(run: LiveRun, ending: Ending, end: RunEnd) -> Ending:
    try:
        return await run.database.write(_write_end(run, ending, end))
    except AlreadyFinished:
        if run.parent is None:
            run.stream.abandon()
        state = await run.database.read(run_reads.get_state(run.run_id))
        if state is None:
            return ending
        return Ending(
            cast(FinalStatus, state.status),
            error_code=state.error_code,
            error_detail=state.error_detail,
            actor=state.cancel_requested_by,
            reason=state.cancel_reason,
            requested_at=state.cancel_requested_at,
        )


@unit
def _write_end(run: LiveRun, ending: Ending, end: RunEnd) -> Steps[Ending]:
    """Write the end and everything that belongs to it.

    CANCELLED requires a recorded request, and the first of several requests counts. The last
    events are stored in the same transaction, so a run with a final status has all its events
    (docs/decisions/0014).
    """
    # The row of the run is locked first, that of its session by `finish` (`store.database`).
    if ending.status == "CANCELLED":
        actor = ending.actor or "system"
        yield from runs.request_cancel(run.run_id, now(), actor, ending.reason, claimed=True)
        requested = yield from run_reads.get_state(run.run_id)
        if requested is not None:
            ending = Ending.cancelled(
                requested.cancel_requested_by or actor,
                requested.cancel_reason,
                requested.cancel_requested_at,
            )
    if run.recorder is not None:
        # Before `finish`: events of a run that is final are refused.
        last = event_format.format_end(run.identity, ending, run.transcript, end.finished_at)
        batch = run.stream.last_batch(last)
        yield from events.append_batch(
            run.run_id, run.attempt, batch.first, batch.last, batch.lines
        )
    if not (yield from runs.finish(end)):
        # Another process has ended the run: the events of this transaction are undone as well.
        raise AlreadyFinished
    if ending.status == "COMPLETED" and (summary := build_summary(run)) is not None:
        yield from sessions.set_summary(run.spec.session_id, summary)
    if (changes := run.state_changes) is not None:
        yield from sessions.merge_state(run.spec.session_id, changes.values, changes.removed)
    return ending


async def _build_live_end(run: LiveRun, ending: Ending) -> RunEnd:
    at, holding = run.finished_at or now(), _encode_holding(run)
    build = partial(
        build_run_end,
        run.spec,
        run.attempt,
        ending,
        run.transcript,
        previous_instructions=run.previous_instructions,
        finished_at=at,
        stopped_at=at if holding is None else None,
        holding=holding,
    )
    # In a thread the steps of a large run take turns with other runs. Nothing changes its
    # transcript any more.
    return await convert(build, run.transcript.size)


def _encode_holding(run: LiveRun) -> str | None:
    names = run.transcript.unstopped.names
    return _to_json(names) if names else None


def build_run_end(
    run: RunSpec | RunRow,
    attempt: int,
    ending: Ending,
    transcript: Transcript,
    *,
    previous_instructions: str | None = None,
    finished_at: int,
    stopped_at: int | None,
    cancel_reason: str | None = None,
    holding: str | None = None,
) -> RunEnd:
    """Build the final columns of a run's row.

    Args:
        previous_instructions: system message of the session's previous run, which its history does
            not repeat.
        finished_at: time of the final status in microseconds.
        stopped_at: time when all work had ended, in microseconds; None if some may continue.
        cancel_reason: replaces the recorded reason of a cancel; None keeps it.
        holding: JSON array of names of the work that continues; None for none or if not known.
    """
    return RunEnd(
        run_id=run.run_id,
        attempt=attempt,
        status=ending.status,
        content=replace_unstorable(transcript.content),
        history=_encode_history(run, transcript, previous_instructions),
        messages=_to_json(transcript.messages),
        tools=_to_json(transcript.tools),
        metrics=_to_json(transcript.metrics),
        error_code=ending.error_code,
        error_detail=ending.error_detail,
        finished_at=finished_at,
        stopped_at=stopped_at,
        cancel_reason=cancel_reason,
        output=None if transcript.output is None else _to_json(transcript.output),
        reasoning_content=transcript.reasoning_content,
        native_kind=transcript.native_kind,
        native_history=transcript.native_history,
        holding=holding,
        spans=_to_json(transcript.spans.records()),
    )


def _encode_history(
    run: RunSpec | RunRow, transcript: Transcript, previous_instructions: str | None = None
) -> str | None:
    """Return the JSON array that a run adds to `chat_history`.

    Return None for workflows and for the runs of members, which have no history
    (docs/contract.md "Session records").
    """
    if run.parent_run_id is not None or run.component_type == "workflow":
        return None
    return _to_json(build_chat_history(transcript.messages, previous_instructions))


def build_unfinished_transcript(run: RunRow, content: str) -> Transcript:
    """Build the transcript of a run that no process finished: its message and known content.

    So the session continues from there and its history shows the message. The usage is unknown.
    Workflows have no messages.
    """
    transcript = Transcript()
    if run.component_type != "workflow":
        transcript.add_user(run.input)
        transcript.messages[0]["created_at"] = whole_seconds(run.created_at)
        if content:
            transcript.add_answer(content)
    transcript.replace_content(content)
    return transcript


@unit
def store_question(run: RunRow) -> Steps[None]:
    """Store the message of a run that ended before it started."""
    transcript = build_unfinished_transcript(run, "")
    history = _encode_history(run, transcript)
    yield from runs.store_question(run.run_id, history, _to_json(transcript.messages))


def _to_json(value: object) -> str:
    return orjson.dumps(value).decode()
