"""What a run needs from earlier ones, and what it leaves behind when it ends.

What is left of a run whose worker could not write its end: its question, and what is known of
its answer. So the session goes on from there, and its history shows what was asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any, NamedTuple, cast

import orjson

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.records.text import replace_unstorable
from agentctl.records.times import now, whole_seconds
from agentctl.runs import event_format
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending, FinalStatus, cancelled, failed
from agentctl.runtime import messages
from agentctl.runtime.transcript import Transcript
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, runs
from agentctl.store.repositories.runs import RunRow

__all__ = ["UnfinishedRecord", "build_unfinished_record", "load_history", "store_end"]

RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0)
"""Pauses between attempts to write an end while the database does not take it; the last repeats."""

_log = logging.getLogger("agentctl.runs")
_complaints = RateLimitedLog(_log)


async def load_history(run: LiveRun) -> list[dict[str, Any]]:
    """The messages of the last `history_runs` runs of the session, oldest first.

    Bounded, so that the cost of a run does not know the history (contract.md 5). A member's run
    and a workflow start from nothing.
    """
    wanted = run.component.history_runs
    if run.parent is not None or run.component.kind == "workflow":
        return []
    recent = runs.list_recent_messages(run.session_id, max(wanted, 1))
    stored = await run.database.read(recent, large=True)
    earlier = [orjson.loads(text) for text in stored]
    run.previous_system = _find_instructions(earlier[-1]) if earlier else None
    kept = earlier if wanted else []
    return [entry for run_messages in kept for entry in run_messages if entry["role"] != "system"]


def _find_instructions(run_messages: list[dict[str, Any]]) -> str | None:
    return next((entry["content"] for entry in run_messages if entry["role"] == "system"), None)


async def store_end(run: LiveRun, ending: Ending, stopped: Callable[[bool], None]) -> Ending:
    """Write the end, once, for as long as it takes: no run stays RUNNING in a living process.

    Args:
        stopped: called when all of the work has stopped at last, if that was not so at the end;
            told whether a result came too late.

    Returns:
        The end that is stored, which may be another's.
    """
    if run.parent is None:
        run.stream.seal()
    if run.recorder is not None:
        await run.recorder.end()
    if ending.status != "COMPLETED":
        run.transcript.close_open_calls(now())
    if run.component.kind != "workflow" and not run.transcript.messages:
        # It was stopped before its component began: what was asked is part of the session.
        run.transcript.add_user(run.message)
    end: runs.RunEnd | None = None
    for pause in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            end = end or _build_run_end(run, ending)
            stored = await _store_or_read_end(run, ending, end)
        except errors.Unavailable:
            _complaints.make("ends of runs could not be written yet")
        except Exception:
            # What it leaves cannot be kept: the end has to do without.
            _log.exception("run %s: its end could not be written", run.run_id)
            run.transcript, end = Transcript(run.transcript.unstopped), None
            if ending.status == "COMPLETED":
                ending = failed("INTERNAL", "What the run left could not be stored")
        else:
            if end.stopped_at is None:
                run.transcript.unstopped.notify_when_empty(stopped)
            return stored
        await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")


class _AlreadyFinished(Exception):
    """Another end was first, or the run is gone: nothing of this one is to be kept."""


async def _store_or_read_end(run: LiveRun, ending: Ending, end: runs.RunEnd) -> Ending:
    """Write the end, or read the one that was first."""
    try:
        return await run.database.write(_write_end(run, ending, end))
    except _AlreadyFinished:
        if run.parent is None:
            run.stream.abandon()
        stored = await run.database.read(runs.get_state(run.run_id))
        return ending if stored is None else _ending_from_state(stored)


@unit
def _write_end(run: LiveRun, ending: Ending, end: runs.RunEnd) -> Steps[Ending]:
    """The end with all that belongs to it, in one transaction.

    CANCELLED always implies a recorded request, and of several the first one is the one that
    counts. The last events go with it, so that a run that is final has all its events stored.
    """
    if ending.status == "CANCELLED":
        actor = ending.actor or "system"
        yield from runs.request_cancel(run.run_id, now(), actor, ending.reason, claimed=True)
        requested = yield from runs.get_state(run.run_id)
        if requested is not None:
            ending = cancelled(
                requested.cancel_requested_by or actor,
                requested.cancel_reason,
                requested.cancel_requested_at,
            )
    if run.recorder is not None:
        last = event_format.format_end(run.identity, ending, run.transcript, end.finished_at)
        batch = run.stream.rest(last)
        yield from events.append_batch(
            run.run_id, run.attempt, batch.first, batch.last, batch.lines
        )
    if not (yield from runs.finish(end)):
        raise _AlreadyFinished
    return ending


def _ending_from_state(state: runs.RunState) -> Ending:
    return Ending(
        cast(FinalStatus, state.status),
        error_code=state.error_code,
        error_detail=state.error_detail,
        actor=state.cancel_requested_by,
        reason=state.cancel_reason,
        requested_at=state.cancel_requested_at,
    )


def _build_run_end(run: LiveRun, ending: Ending) -> runs.RunEnd:
    transcript = run.transcript
    at = run.finished_at or now()
    return runs.RunEnd(
        run_id=run.run_id,
        attempt=run.attempt,
        status=ending.status,
        content=replace_unstorable(transcript.content),
        history=_encode_history(run),
        messages=_to_json(transcript.messages),
        tools=_to_json(transcript.tools),
        metrics=_to_json(dict(transcript.metrics)),
        error_code=ending.error_code,
        error_detail=ending.error_detail,
        finished_at=at,
        stopped_at=None if transcript.unstopped.pending else at,
    )


def _encode_history(run: LiveRun) -> str | None:
    """What `chat_history` shows of the run: top-level runs of agents and teams only."""
    if run.parent is not None or run.component.kind == "workflow":
        return None
    return _to_json(messages.build_chat_history(run.transcript.messages, run.previous_system))


def _to_json(value: object) -> str:
    return orjson.dumps(value).decode()


class UnfinishedRecord(NamedTuple):
    """The JSON texts that the run's row gets. `history` is None where none is shown."""

    history: str | None
    messages: str
    transcript: Transcript


def build_unfinished_record(run: RunRow, content: str) -> UnfinishedRecord:
    """What a run leaves that was asked and has answered this much, its usage unknown.

    Workflows have no messages of their own, and members' runs no history (contract.md 3).
    """
    transcript = Transcript()
    if run.component_type != "workflow":
        transcript.add_user(run.input)
        transcript.messages[0]["created_at"] = whole_seconds(run.created_at)
        if content:
            transcript.add_answer(content)
    transcript.replace_content(content)
    said = transcript.messages
    shown = run.parent_run_id is None and run.component_type != "workflow"
    history = _to_json(messages.build_chat_history(said, None)) if shown else None
    return UnfinishedRecord(history, _to_json(said), transcript)
