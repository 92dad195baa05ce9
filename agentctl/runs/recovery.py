"""What the stored events tell of a run whose worker is gone.

The events of a run and of the runs under it are one stream, stored under the root's id; each event
says whose it is. All deltas, joined, are the content; a workflow's is the output of its last step.

Ends the runs that a dead worker left.

Each run is ended in one transaction, by a conditional update that raises its attempt: of several
processes that recover at once one ends it, and what the old owner still writes is refused.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Any, cast

import orjson

from agentctl.records.kinds import ComponentKind
from agentctl.records.times import now
from agentctl.runs import event_format
from agentctl.runs.event_format import LOST_SEQ_STEP
from agentctl.runs.finish import UnfinishedRecord, build_unfinished_record
from agentctl.runs.states import Ending, cancelled, failed, is_final
from agentctl.runtime.transcript import CANCELLED_RESULT
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import events, runs
from agentctl.store.repositories.runs import RunEnd, RunRow

__all__ = ["LOST_SEQ_STEP", "ReplayedRun", "find_root_id", "recover_runs", "replay_stored_events"]


class ReplayedRun:
    """What is known of one run.

    Attributes:
        component_name: as its events have it; None when there are none.
        tools: entries of its tool calls, as in a transcript.
    """

    def __init__(self, run: RunRow) -> None:
        self._run = run
        self._content: list[str] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self.component_name: str | None = None

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def tools(self) -> list[dict[str, Any]]:
        return list(self._tools.values())

    def close_open_calls(self) -> None:
        """Settle the calls without a result: nobody works on them any more."""
        for entry in self._tools.values():
            if entry.get("tool_call_error") is None:
                entry.update(tool_call_error=True, result=CANCELLED_RESULT)

    def add(self, lines: str) -> None:
        """Take from a stored batch what is of this run; what cannot be read is passed over."""
        # Not splitlines: JSON may hold other ends of lines than its own.
        for line in lines.split("\n"):
            name, _, data = line.partition(" ")
            if self._run.run_id in data:
                with suppress(ValueError, TypeError, AttributeError, KeyError):
                    self._take(name, orjson.loads(data))

    def _take(self, name: str, event: dict[str, Any]) -> None:
        if event.get("run_id") != self._run.run_id:
            return
        self.component_name = event.get(f"{self._run.component_type}_name", self.component_name)
        if name.endswith("Content"):
            self._content.append(str(event["content"]))
        elif name == "StepCompleted":
            self._content = [str(event["content"])]
        elif "tool" in event:
            tool = event["tool"]
            self._tools[tool["tool_call_id"]] = tool


@unit
def replay_stored_events(run: RunRow, root_id: str) -> Steps[ReplayedRun]:
    """Read what is stored of a run in the stream of its root, batch by batch."""
    found = ReplayedRun(run)
    seq = -1
    while batches := (yield from events.list_after(root_id, seq)):
        for batch in batches:
            found.add(batch.events)
        seq = batches[-1].last_seq
    found.close_open_calls()
    return found


@unit
def find_root_id(run: RunRow) -> Steps[str]:
    """The id of the run that no other run asked for, above this one or itself."""
    run_id, above = run.run_id, run.parent_run_id
    while above is not None:
        parent = yield from runs.get_state(above)
        if parent is None:
            break
        run_id, above = parent.run_id, parent.parent_run_id
    return run_id


PARALLEL_RUNS = 64
"""Runs that are ended in parallel: the store writes them in one commit."""

WORKER_LOST = failed("WORKER_LOST", "The process that worked on the run is gone")

WORKER_LOST_REASON = "The worker was lost"


class _AlreadyFinished(Exception):
    """Another end was first: nothing of this one is to be kept."""


async def recover_runs(database: Database, owner: str | None, *, silent: bool = False) -> list[str]:
    """End the runs of a worker that is dead, children before their parents.

    Args:
        owner: the worker; None: runs that nobody works on.
        silent: the worker was not heard of, so its work may go on (`liveness.Death.SILENT`): then
            the runs' `stopped_at` stays open.

    Returns:
        Ids of the runs that this call has ended.

    Raises:
        Unavailable: the database does not answer; what it took is ended.
    """
    ended: list[str] = []
    for generation in _group_by_depth(
        await database.read(runs.list_live_of_worker(owner), large=True)
    ):
        for first in range(0, len(generation), PARALLEL_RUNS):
            ended += await _end_runs(database, generation[first : first + PARALLEL_RUNS], silent)
    return ended


def _group_by_depth(lost: list[RunRow]) -> list[list[RunRow]]:
    """The runs by how many of the others are above them, the deepest first."""
    above = {run.run_id: run.parent_run_id for run in lost}
    generations: defaultdict[int, list[RunRow]] = defaultdict(list)
    for run in lost:
        depth, parent = 0, run.parent_run_id
        while parent is not None:
            depth, parent = depth + 1, above.get(parent)
        generations[depth].append(run)
    return [generations[depth] for depth in sorted(generations, reverse=True)]


async def _end_runs(database: Database, lost: list[RunRow], silent: bool) -> list[str]:
    """One that fails does not keep the others; its failure is raised when they are ended."""
    results = await asyncio.gather(
        *(_try_end_run(database, run, silent) for run in lost), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [run.run_id for run, result in zip(lost, results, strict=True) if result is True]


async def _try_end_run(database: Database, run: RunRow, silent: bool) -> bool:
    try:
        return await database.write(_end_run(run.run_id, run.owner, silent))
    except _AlreadyFinished:
        return False


@unit
def _end_run(run_id: str, owner: str | None, silent: bool) -> Steps[bool]:
    """End one run as it stands now: a cancel may have been requested a moment ago, and neither
    that nor its events can come between any more."""
    run = yield from runs.get_for_update(run_id)
    if run is None or is_final(run.status) or run.owner != owner:
        return False
    root_id = yield from find_root_id(run)
    found = yield from replay_stored_events(run, root_id)
    ending = _ending(run)
    left = build_unfinished_record(run, found.content)
    left.transcript.tools.extend(found.tools)
    if root_id == run.run_id:
        yield from _append_end_event(run, found.component_name, ending, left)
    if not (yield from runs.finish(_build_run_end(run, ending, left, silent), lost=True)):
        raise _AlreadyFinished
    return True


def _ending(run: RunRow) -> Ending:
    if run.cancel_requested_at is None:
        return WORKER_LOST
    given = run.cancel_reason
    reason = f"{given}; the worker was lost" if given else WORKER_LOST_REASON
    return cancelled(run.cancel_requested_by or "system", reason)


@unit
def _append_end_event(
    run: RunRow, name: str | None, ending: Ending, left: UnfinishedRecord
) -> Steps[None]:
    """Add the last event for who follows the run, when its events are stored. The component may
    not be configured here, so its name is the one that the events have."""
    last = yield from events.get_last_seq(run.run_id)
    if last < 0:
        return
    kind = cast(ComponentKind, run.component_type)
    identity = event_format.RunIdentity(
        run.run_id, run.session_id, None, kind, run.component_id, name or run.component_id
    )
    event, data = event_format.format_end(identity, ending, left.transcript)
    seq = last + LOST_SEQ_STEP
    yield from events.append_batch(run.run_id, run.attempt, seq, seq, f"{event} {data.decode()}\n")


def _build_run_end(run: RunRow, ending: Ending, left: UnfinishedRecord, silent: bool) -> RunEnd:
    at = now()
    return RunEnd(
        run_id=run.run_id,
        attempt=run.attempt,
        status=ending.status,
        content=left.transcript.content,
        history=left.history,
        messages=left.messages,
        tools=orjson.dumps(left.transcript.tools).decode(),
        metrics=orjson.dumps(left.transcript.metrics).decode(),
        error_code=ending.error_code,
        error_detail=ending.error_detail,
        finished_at=at,
        stopped_at=None if silent else at,
        cancel_reason=ending.reason,
    )
