"""Works runs: the row before the work, one supervisor a run, the end written once.

A supervisor never waits on the work without a bound. It runs the component as a task of its own
and waits for the first of its end, a request to stop, and the run's time limit; a task that does
not end within `GRACE_SECONDS` of its cancellation is left behind, unheard (design.md "Stopping").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.ids import new_id
from agentctl.records.times import now
from agentctl.runs import endings, wire
from agentctl.runs.admission import Submission, admit, admit_member
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending, cancelled, completed, failed
from agentctl.runtime.catalog import Catalog, Component
from agentctl.runtime.context import MemberResult
from agentctl.runtime.failures import RunFailure
from agentctl.store import runs
from agentctl.store.database import Database, Work

__all__ = ["Engine"]

GRACE_SECONDS = 0.1
"""How long cancelled work may take to end before its run is final without it."""

CLOSE_SECONDS = 5.0
"""How long a closing engine waits for its runs to be final."""

_log = logging.getLogger("agentctl.runs")


class Engine:
    """Everything that this process works on.

    Args:
        databases: the open databases by id.
        catalog: what is hosted.
        settings: limits and time-outs.
    """

    def __init__(
        self, databases: Mapping[str, Database], catalog: Catalog, settings: Settings
    ) -> None:
        self.worker_id = new_id()
        self._databases = databases
        self._catalog = catalog
        self._settings = settings
        self._live: dict[str, LiveRun] = {}
        self._beginning = 0
        self._draining = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def draining(self) -> bool:
        """Whether new runs are refused because the process is to end."""
        return self._draining

    def live(self, run_id: str) -> LiveRun | None:
        """The run, when this process works on it."""
        return self._live.get(run_id)

    def live_runs(self) -> list[LiveRun]:
        """The runs that this process works on."""
        return list(self._live.values())

    def _roots(self) -> list[LiveRun]:
        return [run for run in self._live.values() if run.parent is None]

    async def submit(self, submission: Submission) -> LiveRun:
        """Commit the run's row, then start the work.

        Raises:
            NotFound: the session is not the caller's.
            Conflict: the session is of another kind, or busy and the component wants it alone.
            TooManyRequests: `limits.concurrent_runs` are worked on already.
            Unavailable: the process is to end, or the database does not answer.
        """
        self._check_room()
        run = self._new_run(submission)
        self._beginning += 1
        try:
            await self._begin(run, admit(run, submission, self._catalog, self.worker_id))
        except asyncio.CancelledError:
            if not submission.background:
                run.stop(cancelled(submission.actor, "The client went away"))
            raise
        finally:
            self._beginning -= 1
        return run

    def _check_room(self) -> None:
        if self._draining:
            raise errors.Unavailable("The server is shutting down")
        if self._beginning + len(self._roots()) >= self._settings.limits.concurrent_runs:
            raise errors.TooManyRequests("Too many runs at once")

    def _new_run(self, submission: Submission) -> LiveRun:
        return LiveRun(
            new_id(),
            submission.session_id,
            submission.component,
            submission.message,
            user_id=submission.user_id,
            parent=None,
            database=self._databases[submission.component.database],
            spawn=self._run_member,
            limits=self._settings.limits,
            time_limit=self._settings.runs.timeout_seconds,
            tool_timeout=self._settings.runs.tool_timeout_seconds,
        )

    async def _run_member(
        self, parent: LiveRun, component: Component, message: str
    ) -> MemberResult:
        run = LiveRun(
            new_id(),
            parent.session_id,
            component,
            message,
            user_id=parent.user_id,
            parent=parent,
            database=parent.database,
            spawn=self._run_member,
            limits=parent.limits,
            # To a team's leader a member is a tool; a step of a workflow is part of the whole.
            time_limit=parent.tool_timeout
            if parent.component.kind == "team"
            else parent.time_limit,
            tool_timeout=parent.tool_timeout,
        )
        try:
            await self._begin(run, admit_member(run, self.worker_id))
            ending = await asyncio.shield(run.ended)
        except asyncio.CancelledError:
            run.stop(parent.stopping or cancelled("system:parent", "The run above it went on"))
            raise
        return MemberResult(
            run_id=run.run_id,
            status=ending.status,
            content=run.transcript.content,
            error_detail=ending.error_detail,
            error_code=ending.error_code,
        )

    async def _begin(self, run: LiveRun, admission: Work[None]) -> None:
        """Commit the row and start the work, not torn apart when the caller is cancelled."""
        await asyncio.shield(self._keep(self._commit_and_launch(run, admission)))

    async def _commit_and_launch(self, run: LiveRun, admission: Work[None]) -> None:
        await run.database.write(admission)
        self._live[run.run_id] = run
        if run.parent is not None:
            run.parent.children.append(run)
            if run.parent.stopping is not None:
                run.stop(run.parent.stopping)
        self._keep(self._supervise(run))

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that is held until it is done: the loop itself holds only a weak reference."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieve)
        return task

    async def _supervise(self, run: LiveRun) -> None:
        try:
            ending = await self._work(run)
        except Exception:
            _log.exception("run %s could not be worked", run.run_id)
            ending = failed("INTERNAL", "The run failed inside the server")
        run.detach()
        stored = await endings.settle(run, ending)
        run.stream.publish(*wire.ended(run.identity, stored, run.transcript))
        if run.parent is None:
            run.stream.close()
        self._live.pop(run.run_id, None)
        run.ended.set_result(stored)

    async def _work(self, run: LiveRun) -> Ending:
        started = run.stopping is None and await run.database.write(
            runs.start(run.run_id, run.attempt, self.worker_id, now())
        )
        if not started:
            return run.stopping or cancelled("system", None)
        run.stream.publish(*wire.started(run.identity))
        work = self._keep(self._execute(run))
        stop = asyncio.create_task(run.stop_requested.wait())
        both = {work, stop}
        await asyncio.wait(both, timeout=run.time_limit, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not work.done():
            run.stop(failed("RUN_TIMEOUT", "The run took longer than it may"))
            await self._end_work(run, work)
        await self._end_children(run)
        return _ending(run, work)

    async def _execute(self, run: LiveRun) -> None:
        from agentctl.runtime.execute import execute

        history = await endings.load_history(run)
        await execute(run.component, run.message, history, run, self._catalog)

    async def _end_work(self, run: LiveRun, work: asyncio.Task[None]) -> None:
        work.cancel()
        await asyncio.wait({work}, timeout=GRACE_SECONDS)
        if not work.done():
            _log.warning("run %s: its work did not end when cancelled", run.run_id)
            run.left_behind = True

    async def _end_children(self, run: LiveRun) -> None:
        pending = [child for child in run.children if not child.ended.done()]
        for child in pending:
            child.stop(run.stopping or cancelled("system:parent", "The run above it ended"))
        if pending:
            await asyncio.wait([child.ended for child in pending], timeout=2 * GRACE_SECONDS)

    async def drain(self, seconds: float) -> None:
        """Refuse new runs, wait up to `seconds` for those under way, then cancel what is left."""
        self._draining = True
        roots = self._roots()
        if roots:
            await asyncio.wait([run.ended for run in roots], timeout=seconds)
        await self.close()

    async def close(self) -> None:
        """Cancel what is worked on, as a recorded request, and wait for the ends."""
        self._draining = True
        roots = self._roots()
        for run in roots:
            run.stop(cancelled("system:shutdown", "The server is shutting down"))
        if roots:
            await asyncio.wait([run.ended for run in roots], timeout=CLOSE_SECONDS)


def _ending(run: LiveRun, work: asyncio.Task[None]) -> Ending:
    if not work.done() or work.cancelled():
        return run.stopping or failed("INTERNAL", "The run was interrupted inside the server")
    failure = work.exception()
    if failure is None:
        return completed()
    if isinstance(failure, RunFailure):
        return failed(failure.code, failure.detail)
    _log.error("run %s failed", run.run_id, exc_info=failure)
    return failed("INTERNAL", "The run failed inside the server")


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the result of a task that nobody waits for, so that nothing complains about it."""
    if not task.cancelled():
        task.exception()
