"""Works runs: the row before the work, one supervisor a run, the end written once.

A supervisor never waits on the work without a bound. It runs the component as a task of its own
and waits for the first of its end, a request to stop, and the run's time limit; a task that does
not end within `GRACE_SECONDS` of its cancellation is left behind, unheard (design.md "Stopping").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.ids import new_id
from agentctl.records.times import now
from agentctl.runs import endings, wire
from agentctl.runs.admission import Submission, admit, admit_member
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending, cancelled, completed, failed
from agentctl.runs.tasks import Tasks
from agentctl.runtime.catalog import Catalog, Component
from agentctl.runtime.context import MemberResult
from agentctl.runtime.failures import RunFailure
from agentctl.store import runs
from agentctl.store.database import Database, Work

__all__ = ["CLIENT_LEFT", "Engine"]

GRACE_SECONDS = 0.1
"""How long cancelled work may take to end before its run is final without it."""

SETTLE_SECONDS = 8.0
"""How long followers of a run wait for its end to be stored before they are told of it anyway."""

CLOSE_SECONDS = 5.0
"""How long a closing engine waits for its runs to be final."""

_FAILED = failed("INTERNAL", "The run failed inside the server")

CLIENT_LEFT = "The client went away"
"""The reason of the cancel of a run whose caller did not wait for it."""

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
        self._closing: Ending | None = None
        # Beginnings, supervisors and ends of runs: what needs the databases.
        self._lives = Tasks()
        self._works = Tasks()

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

    def roots(self) -> list[LiveRun]:
        """Those of them that no other run asked for."""
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
            if not submission.goes_on:
                run.stop(cancelled(submission.actor, CLIENT_LEFT))
            raise
        finally:
            self._beginning -= 1
        return run

    def _check_room(self) -> None:
        if self._draining:
            raise errors.Unavailable("The server is shutting down")
        if self._beginning + len(self.roots()) >= self._settings.limits.concurrent_runs:
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
        await asyncio.shield(self._lives.start(self._commit_and_launch(run, admission)))

    async def _commit_and_launch(self, run: LiveRun, admission: Work[None]) -> None:
        await run.database.write(admission)
        self._live[run.run_id] = run
        stopping = self._closing
        if run.parent is not None:
            run.parent.children.append(run)
            stopping = run.parent.stopping or stopping
        if stopping is not None:
            run.stop(stopping)
        self._lives.start(self._supervise(run))

    async def _supervise(self, run: LiveRun) -> None:
        stored = _FAILED
        try:
            ending = await self._worked(run)
            run.detach()
            stored = await self._settled(run, ending)
            run.stream.publish(*wire.ended(run.identity, stored, run.transcript))
        except Exception:
            _log.exception("run %s did not end as it should", run.run_id)
        finally:
            if run.parent is None:
                run.stream.close()
            self._live.pop(run.run_id, None)
            run.ended.set_result(stored)

    async def _settled(self, run: LiveRun, ending: Ending) -> Ending:
        """The end that is stored. Storing it goes on for as long as it takes; this does not."""
        storing = self._lives.start(endings.settle(run, ending))
        await asyncio.wait({storing}, timeout=SETTLE_SECONDS)
        return storing.result() if storing.done() else ending

    async def _worked(self, run: LiveRun) -> Ending:
        try:
            return await self._work(run)
        except Exception:
            _log.exception("run %s could not be worked", run.run_id)
            return _FAILED

    async def _work(self, run: LiveRun) -> Ending:
        started = run.stopping is None and await run.database.write(
            runs.start(run.run_id, run.attempt, self.worker_id, now())
        )
        if not started:
            return run.stopping or cancelled("system", None)
        run.stream.publish(*wire.started(run.identity))
        work = self._works.start(self._execute(run))
        await asyncio.wait(
            {work, run.stop_requested},
            timeout=run.time_limit,
            return_when=asyncio.FIRST_COMPLETED,
        )
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
        await self._lives.done(seconds)
        await self.close()

    async def close(self) -> None:
        """Cancel what is worked on, as a recorded request, and wait for the ends.

        What the database has not taken after `CLOSE_SECONDS` is given up.
        """
        self._draining = True
        self._closing = cancelled("system:shutdown", "The server is shutting down")
        for run in self.roots():
            run.stop(self._closing)
        await self._lives.done(CLOSE_SECONDS)
        await self._lives.end()


def _ending(run: LiveRun, work: asyncio.Task[None]) -> Ending:
    """How the work ended. A failure of work that was told to stop is how it stopped."""
    if not work.done() or work.cancelled():
        return run.stopping or failed("INTERNAL", "The run was interrupted inside the server")
    failure = work.exception()
    if failure is None:
        return completed()
    if run.stopping is not None:
        return run.stopping
    if isinstance(failure, RunFailure):
        return failed(failure.code, failure.detail)
    _log.error("run %s failed", run.run_id, exc_info=failure)
    return _FAILED
