"""Recovery: ends the runs of a dead worker.

Each run is ended in one transaction, by a conditional update that raises its attempt. If several
processes recover at once, exactly one of them ends a run, and later writes of its old owner are
refused.

The results come from the stored events (`runs/replay.py`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import cast

from agentctl.records.kinds import ComponentKind
from agentctl.records.times import now
from agentctl.runs import event_format
from agentctl.runs.event_format import LOST_SEQ_STEP
from agentctl.runs.finish import AlreadyFinished
from agentctl.runs.replay import find_root_id, replay_stored_events
from agentctl.runs.results import build_run_end, build_unfinished_transcript
from agentctl.runs.states import Ending, is_final
from agentctl.runtime.transcript import Transcript
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import events, run_reads, runs
from agentctl.store.repositories.run_rows import RunRow

PARALLEL_RUNS = 64
"""Number of runs that are ended in parallel: group commit writes them in one transaction."""

WORKER_LOST = Ending.failed("WORKER_LOST", "The process that worked on the run is gone")

WORKER_LOST_REASON = "The worker was lost"


async def recover_runs(
    database: Database, owner: str | None, *, may_still_run: bool = False
) -> list[str]:
    """End the live runs of a dead worker, children before their parents.

    If one of them cannot be ended, the others are ended first and then its exception is raised.

    Args:
        owner: id of the worker; None for runs that have no owner.
        may_still_run: True if the worker only stopped its heartbeat
            (`liveness.WorkerDeath.NO_HEARTBEAT`). Its work may continue, so the `stopped_at` of
            its runs stays empty. Otherwise the work of its ended runs is known to have stopped.

    Returns:
        Ids of the runs that this call has ended.

    Raises:
        Unavailable: the database does not answer; the runs before that are ended.
    """
    ended: list[str] = []
    for level in _group_by_depth(
        await database.read(run_reads.list_live_of_worker(owner), size="large")
    ):
        for first in range(0, len(level), PARALLEL_RUNS):
            lost = level[first : first + PARALLEL_RUNS]
            results = await asyncio.gather(
                *(_end_run(database, run, may_still_run) for run in lost), return_exceptions=True
            )
            for run, result in zip(lost, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                if result:
                    ended.append(run.run_id)
    if owner is not None:
        gone = runs.record_worker_gone(owner, now(), exited=not may_still_run)
        await database.write(gone)
    return ended


def _group_by_depth(lost: list[RunRow]) -> list[list[RunRow]]:
    parents = {run.run_id: run.parent_run_id for run in lost}
    levels: defaultdict[int, list[RunRow]] = defaultdict(list)
    for run in lost:
        depth, parent = 0, run.parent_run_id
        while parent is not None:
            depth, parent = depth + 1, parents.get(parent)
        levels[depth].append(run)
    return [levels[depth] for depth in sorted(levels, reverse=True)]


async def _end_run(database: Database, run: RunRow, may_still_run: bool) -> bool:
    try:
        return await database.write(_write_end(run.run_id, run.owner, may_still_run))
    except AlreadyFinished:
        return False


@unit
def _write_end(run_id: str, owner: str | None, may_still_run: bool) -> Steps[bool]:
    """End one run in its current state.

    The row is locked and read again: a cancel may have been requested since, and no request and
    no event can be added until the end is committed.
    """
    run = yield from run_reads.get_for_update(run_id)
    if run is None or is_final(run.status) or run.owner != owner:
        return False
    root_id = yield from find_root_id(run)
    replayed = yield from replay_stored_events(run, root_id)
    replayed.close_open_calls()
    ending = WORKER_LOST
    if run.cancel_requested_at is not None:
        reason = f"{run.cancel_reason}; the worker was lost" if run.cancel_reason else None
        ending = Ending.cancelled(run.cancel_requested_by or "system", reason or WORKER_LOST_REASON)
    transcript = build_unfinished_transcript(run, replayed.content)
    transcript.tools.extend(replayed.tools)
    at = now()
    transcript.spans = replayed.spans
    transcript.spans.end_all("failed" if ending.status == "ERROR" else "cancelled", at)
    if root_id == run.run_id:
        yield from _append_end_event(run, replayed.component_name, ending, transcript)
    end = build_run_end(
        run,
        run.attempt,
        ending,
        transcript,
        finished_at=at,
        stopped_at=None if may_still_run else at,
        cancel_reason=ending.reason,
    )
    if not (yield from runs.finish(end, lost=True)):
        raise AlreadyFinished
    return True


@unit
def _append_end_event(
    run: RunRow, component_name: str | None, ending: Ending, transcript: Transcript
) -> Steps[None]:
    """Store the last event of a run whose events are stored, for its followers.

    The name of the component is that of the earlier events: it may not be configured here.
    """
    last = yield from events.get_last_seq(run.run_id)
    if last < 0:
        return
    identity = event_format.RunIdentity(
        run.run_id,
        run.session_id,
        None,
        cast(ComponentKind, run.component_type),
        run.component_id,
        component_name or run.component_id,
    )
    name, data = event_format.format_end(identity, ending, transcript)
    seq = last + LOST_SEQ_STEP
    yield from events.append_batch(run.run_id, run.attempt, seq, seq, f"{name} {data.decode()}\n")
