"""What the runs of a process came to: counted where they begin and end, read by who shows it.

The life of one run, from its row to its end: the end is written once and told to followers.

It never waits on the work without a bound. The component works as a task of its own, and the first
of its end, a request to stop, and the run's time limit counts; a task that does not end within
`GRACE_SECONDS` of its cancellation is left behind, unheard (design.md "Stopping").
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial

from agentctl import errors
from agentctl.records.kinds import ComponentKind
from agentctl.records.log_context import extend_log_context
from agentctl.records.numbers import DurationHistogram
from agentctl.records.times import now
from agentctl.runs import event_format, finish
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending, FinalStatus, cancelled, completed, failed
from agentctl.runs.tasks import Tasks, retry_while_unavailable
from agentctl.runtime.catalog import Catalog
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.unstopped import wait_until_done
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import runs

__all__ = ["RunCounters", "Supervision"]

CANCEL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds around what a cancel may take (design.md "Speed")."""


class RunCounters:
    """Counts since the process started, members' runs included.

    Attributes:
        started: by the kind of the component.
        ended: by kind and final state, once that is stored; by this process, so not what others
            ended when it was taken for dead.
        cancels: from the request, on the clock of whoever made it, to the final row.
    """

    def __init__(self) -> None:
        self.started = Counter[ComponentKind]()
        self.ended = Counter[tuple[ComponentKind, FinalStatus]]()
        self.cancels = DurationHistogram(CANCEL_BUCKETS)

    def begin(self, kind: ComponentKind) -> None:
        """A run's row is there."""
        self.started[kind] += 1

    def end(self, kind: ComponentKind, status: FinalStatus, cancel_seconds: float | None) -> None:
        """A run is final; so long after it was asked to stop, when it was."""
        self.ended[kind, status] += 1
        if cancel_seconds is not None:
            self.cancels.add(max(cancel_seconds, 0.0))


GRACE_SECONDS = 0.1
"""How long cancelled work may take to end before its run is final without it."""

STORE_WAIT_SECONDS = 8.0
"""How long who follows a run waits for its end to be stored. Then the events end without an end:
what is not stored is not told, and may be heard of later."""

_FAILED = failed("INTERNAL", "The run failed inside the server")
_DATABASE_UNAVAILABLE = failed(
    "INTERNAL", "The database was away for longer than the run waits for it"
)

_log = logging.getLogger("agentctl.runs")


class Supervision:
    """Works the runs of an engine, one call of `supervise` each.

    Args:
        catalog: what is hosted.
        lives: takes the tasks that need the databases: they are waited for when the engine closes.
        works: takes the tasks of the components themselves.
        tally: is told of every end.
    """

    def __init__(self, catalog: Catalog, lives: Tasks, works: Tasks, tally: RunCounters) -> None:
        self._catalog = catalog
        self._tally = tally
        self._lives = lives
        self._works = works

    async def supervise(self, run: LiveRun) -> None:
        """Work a run whose row is there; `run.ended` is the end that is stored, or will be."""
        extend_log_context(session_id=run.session_id, run_id=run.run_id)
        ending, stored = _FAILED, None
        try:
            ending = await self._work_or_fail(run)
            run.detach()
            run.finished_at = now()
            stored = await self._settled(run, ending)
        except Exception:
            _log.exception("run %s did not end as it should", run.run_id)
        finally:
            _publish_end(run, stored)
            run.ended.set_result(stored or ending)

    def _start_recording_stop(self, run: LiveRun, late: bool) -> None:
        """What a run had left behind has ended; what it brought, if anything, is dropped."""
        self._lives.start(_record_work_stopped(run, late))

    async def _settled(self, run: LiveRun, ending: Ending) -> Ending | None:
        """The end that is stored; None: not yet. That goes on for as long as it takes."""
        storing = self._lives.start(self._store(run, ending))
        await asyncio.wait({storing}, timeout=STORE_WAIT_SECONDS)
        return storing.result() if storing.done() else None

    async def _store(self, run: LiveRun, ending: Ending) -> Ending:
        stored = await finish.store_end(
            run, ending, lambda late: self._start_recording_stop(run, late)
        )
        requested_at = stored.requested_at if stored.status == "CANCELLED" else None
        took = None if requested_at is None else (now() - requested_at) / 1_000_000
        self._tally.end(run.component.kind, stored.status, took)
        return stored

    async def _work_or_fail(self, run: LiveRun) -> Ending:
        try:
            return await self._work(run)
        except errors.Unavailable:
            return run.stopping or _DATABASE_UNAVAILABLE
        except Exception:
            _log.exception("run %s could not be worked", run.run_id)
            return _FAILED

    async def _work(self, run: LiveRun) -> Ending:
        if not await _claim_run(run):
            return run.stopping or cancelled("system", None)
        if run.stream.recorded:
            run.stream.publish(*event_format.format_started(run.identity))
        work = self._works.start(self._execute(run))
        await asyncio.wait(
            {work, run.stop_requested},
            timeout=run.time_limit,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not work.done():
            run.stop(failed("RUN_TIMEOUT", "The run took longer than it may"))
            await _stop_work(run, work)
        await _stop_children(run)
        return _ending_of_work(run, work)

    async def _execute(self, run: LiveRun) -> None:
        from agentctl.runtime.execute import execute_component

        load = partial(finish.load_history, run)
        history = await retry_while_unavailable(load, stopped=run.stop_requested)
        await execute_component(run.component, run.message, history, run, self._catalog)


async def _claim_run(run: LiveRun) -> bool:
    """Whether the run is to be worked on: it has been claimed, and nobody asked for its end."""
    if run.stopping is not None:
        return False
    return await retry_while_unavailable(
        lambda: run.database.write(_claim_row(run, now())), stopped=run.stop_requested
    )


@unit
def _claim_row(run: LiveRun, at: int) -> Steps[bool]:
    """Claim the run, or find that an attempt to do so, whose answer was lost, has."""
    if (yield from runs.claim(run.run_id, run.attempt, run.owner, at)):
        return True
    state = yield from runs.get_state(run.run_id)
    return state is not None and (state.status, state.attempt) == ("RUNNING", run.attempt)


async def _stop_work(run: LiveRun, work: asyncio.Task[None]) -> None:
    work.cancel()
    if not await wait_until_done({work}, GRACE_SECONDS):
        _log.warning("run %s: its work did not end when cancelled", run.run_id)
        run.transcript.unstopped.add(work)


async def _stop_children(run: LiveRun) -> None:
    pending = [child for child in run.children if not child.ended.done()]
    for child in pending:
        child.stop(run.stopping or cancelled("system:parent", "The run above it ended"))
    if pending:
        await wait_until_done({child.ended for child in pending}, 2 * GRACE_SECONDS)


def _publish_end(run: LiveRun, ending: Ending | None) -> None:
    """Tell followers how the run ended, if that is known; nothing of a root comes behind it."""
    last = None
    if run.stream.recorded and ending is not None:
        last = event_format.format_end(run.identity, ending, run.transcript, run.finished_at)
    if run.parent is None:
        run.stream.close(last)
    elif last is not None:
        run.stream.publish(*last)


async def _record_work_stopped(run: LiveRun, late: bool) -> None:
    try:
        await run.database.write(runs.record_work_stopped(run.run_id, run.attempt, now(), late))
    except errors.AgentctlError:
        _log.warning("run %s: the end of what it left behind could not be noted", run.run_id)


def _ending_of_work(run: LiveRun, work: asyncio.Task[None]) -> Ending:
    """How the work ended. A failure of work that was told to stop is how it stopped."""
    if not work.done() or work.cancelled():
        return run.stopping or failed("INTERNAL", "The run was interrupted inside the server")
    failure = work.exception()
    if failure is None:
        return completed()
    if run.stopping is not None:
        return run.stopping
    if isinstance(failure, ExecutionError):
        return failed(failure.code, failure.detail)
    if isinstance(failure, errors.Unavailable):
        return _DATABASE_UNAVAILABLE
    _log.error("run %s failed", run.run_id, exc_info=failure)
    return _FAILED
