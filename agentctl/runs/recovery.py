"""Ends the runs that a dead worker left.

Each run is ended in one transaction, by a conditional update that raises its attempt: of several
processes that recover at once one ends it, and what the old owner still writes is refused.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import cast

import orjson

from agentctl.records.kinds import Kind
from agentctl.records.times import now
from agentctl.runs import wire
from agentctl.runs.remains import Remains, remains
from agentctl.runs.salvage import root_of, salvage
from agentctl.runs.states import Ending, cancelled, failed, is_final
from agentctl.runs.wire import LOST_STEP
from agentctl.store import events, runs
from agentctl.store.database import Database, Steps, unit
from agentctl.store.runs import RunEnd, RunRow

__all__ = ["LOST_STEP", "recover"]

AT_ONCE = 64
"""Runs that are ended in parallel: the store writes them in one commit."""

LOST = failed("WORKER_LOST", "The process that worked on the run is gone")

LOST_REASON = "The worker was lost"


class _Overtaken(Exception):
    """Another end was first: nothing of this one is to be kept."""


async def recover(database: Database, owner: str | None, *, silent: bool = False) -> list[str]:
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
    for generation in _generations(await database.read(runs.live_of(owner), large=True)):
        for first in range(0, len(generation), AT_ONCE):
            ended += await _end_each(database, generation[first : first + AT_ONCE], silent)
    return ended


def _generations(lost: list[RunRow]) -> list[list[RunRow]]:
    """The runs by how many of the others are above them, the deepest first."""
    above = {run.run_id: run.parent_run_id for run in lost}
    generations: defaultdict[int, list[RunRow]] = defaultdict(list)
    for run in lost:
        depth, parent = 0, run.parent_run_id
        while parent is not None:
            depth, parent = depth + 1, above.get(parent)
        generations[depth].append(run)
    return [generations[depth] for depth in sorted(generations, reverse=True)]


async def _end_each(database: Database, lost: list[RunRow], silent: bool) -> list[str]:
    """One that fails does not keep the others; its failure is raised when they are ended."""
    results = await asyncio.gather(
        *(_ended(database, run, silent) for run in lost), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [run.run_id for run, result in zip(lost, results, strict=True) if result is True]


async def _ended(database: Database, run: RunRow, silent: bool) -> bool:
    try:
        return await database.write(_end(run.run_id, run.owner, silent))
    except _Overtaken:
        return False


@unit
def _end(run_id: str, owner: str | None, silent: bool) -> Steps[bool]:
    """End one run as it stands now: a cancel may have been requested a moment ago, and neither
    that nor its events can come between any more."""
    run = yield from runs.hold(run_id)
    if run is None or is_final(run.status) or run.owner != owner:
        return False
    root_id = yield from root_of(run)
    found = yield from salvage(run, root_id)
    ending = _ending(run)
    left = remains(run, found.content)
    left.transcript.tools.extend(found.tools)
    if root_id == run.run_id:
        yield from _tell(run, found.component_name, ending, left)
    if not (yield from runs.finish(_run_end(run, ending, left, silent), lost=True)):
        raise _Overtaken
    return True


def _ending(run: RunRow) -> Ending:
    if run.cancel_requested_at is None:
        return LOST
    given = run.cancel_reason
    reason = f"{given}; the worker was lost" if given else LOST_REASON
    return cancelled(run.cancel_requested_by or "system", reason)


@unit
def _tell(run: RunRow, name: str | None, ending: Ending, left: Remains) -> Steps[None]:
    """Add the last event for who follows the run, when its events are stored. The component may
    not be configured here, so its name is the one that the events have."""
    last = yield from events.last_seq(run.run_id)
    if last < 0:
        return
    kind = cast(Kind, run.component_type)
    identity = wire.RunIdentity(
        run.run_id, run.session_id, None, kind, run.component_id, name or run.component_id
    )
    event, data = wire.ended(identity, ending, left.transcript)
    seq = last + LOST_STEP
    yield from events.append(run.run_id, run.attempt, seq, seq, f"{event} {data.decode()}\n")


def _run_end(run: RunRow, ending: Ending, left: Remains, silent: bool) -> RunEnd:
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
