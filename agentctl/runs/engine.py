"""Works runs: the row before the work, one supervisor a run, the end written once.

A supervisor never waits on the work without a bound. It runs the component as a task of its own
and waits for the first of its end, a request to stop, and the run's time limit; a task that does
not end within `GRACE_SECONDS` of its cancellation is left behind, unheard (design.md "Stopping").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.ids import new_id
from agentctl.records.times import now
from agentctl.runs import endings, wire
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending, cancelled, completed, failed
from agentctl.runtime.catalog import Catalog, Component
from agentctl.runtime.context import MemberResult
from agentctl.runtime.failures import RunFailure
from agentctl.store import runs, sessions
from agentctl.store.database import Database, Work
from agentctl.store.sessions import SessionRow
from agentctl.store.visibility import Visibility

__all__ = ["Engine", "Submission"]

GRACE_SECONDS = 0.1
"""How long cancelled work may take to end before its run is final without it."""

CLOSE_SECONDS = 5.0
"""How long a closing engine waits for its runs to be final."""

NAME_LENGTH = 60
"""Characters of a first message that become the session's name (contract.md 3)."""

_log = logging.getLogger("agentctl.runs")


@dataclass(frozen=True, slots=True)
class Submission:
    """A run to start, checked as far as it can be without the database.

    Attributes:
        visibility: the sessions that it may run in, if the one it names exists already.
    """

    component: Component
    session_id: str
    user_id: str | None
    message: str
    background: bool
    visibility: Visibility


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
        self._tasks: set[asyncio.Task[Any]] = set()

    def live(self, run_id: str) -> LiveRun | None:
        """The run, when this process works on it."""
        return self._live.get(run_id)

    def live_runs(self) -> list[LiveRun]:
        """The runs that this process works on."""
        return list(self._live.values())

    async def submit(self, submission: Submission) -> LiveRun:
        """Commit the run's row, then start the work.

        Raises:
            NotFound: the session is not the caller's.
            Conflict: the session is of another kind, or busy and the component wants it alone.
            TooManyRequests: `limits.concurrent_runs` are worked on already.
        """
        if len(self._live) >= self._settings.limits.concurrent_runs:
            raise errors.TooManyRequests("Too many runs at once")
        component = submission.component
        run = self._new_run(submission, self._databases[component.database])
        await run.database.write(self._admit(run, submission))
        self._launch(run)
        return run

    def _new_run(self, submission: Submission, database: Database) -> LiveRun:
        return LiveRun(
            new_id(),
            submission.session_id,
            submission.component,
            submission.message,
            user_id=submission.user_id,
            parent=None,
            database=database,
            spawn=self._run_member,
            limits=self._settings.limits,
            tool_timeout=self._settings.runs.tool_timeout_seconds,
        )

    def _admit(self, run: LiveRun, submission: Submission) -> Work[None]:
        component = run.component
        new = sessions.new_session(
            run.session_id,
            component.kind,
            user_id=run.user_id,
            now=now(),
            component_id=component.id,
            component_name=component.name,
            component_data=orjson.dumps(self._catalog.data(component)).decode(),
        )
        session = yield from sessions.open_for_run(new, submission.visibility)
        if isinstance(session, sessions.Foreign):
            raise _foreign(session.row, submission.visibility)
        if component.on_busy == "reject":
            busy = yield from runs.live_in_session(run.session_id)
            if busy:
                raise errors.Conflict(f"The session is busy with run {busy[0]}")
        yield from _create(self._row(run, submission.background, _name(run.message)))

    def _row(self, run: LiveRun, background: bool, session_name: str | None) -> runs.NewRun:
        return runs.NewRun(
            run_id=run.run_id,
            session_id=run.session_id,
            parent_run_id=run.parent.run_id if run.parent is not None else None,
            component_type=run.component.kind,
            component_id=run.component.id,
            user_id=run.user_id,
            background=background,
            input=run.message,
            owner=self.worker_id,
            created_at=now(),
            session_name=session_name,
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
            tool_timeout=parent.tool_timeout,
        )
        await run.database.write(_create(self._row(run, False, None)))
        self._launch(run)
        try:
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

    def _launch(self, run: LiveRun) -> None:
        self._live[run.run_id] = run
        if run.parent is not None and run.parent.stopping is not None:
            run.stop(run.parent.stopping)
        self._keep(asyncio.create_task(self._supervise(run), name=f"run {run.run_id}"))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a reference until the task is done: the loop itself holds only a weak one."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, run: LiveRun) -> None:
        try:
            ending = await self._work(run)
        except Exception:
            _log.exception("run %s could not be worked", run.run_id)
            ending = failed("INTERNAL", "The run failed inside the server")
        run.detach()
        stored = await endings.settle(run, ending)
        run.stream.publish(*wire.ended(run, stored))
        if run.parent is None:
            run.stream.close()
        self._live.pop(run.run_id, None)
        run.ended.set_result(stored)

    async def _work(self, run: LiveRun) -> Ending:
        started = await run.database.write(
            runs.start(run.run_id, run.attempt, self.worker_id, now())
        )
        if not started:
            return run.stopping or cancelled("system", None)
        run.stream.publish(*wire.started(run))
        work = asyncio.create_task(self._execute(run), name=f"work {run.run_id}")
        stop = asyncio.create_task(run.stop_requested.wait())
        timeout = self._settings.runs.timeout_seconds
        await asyncio.wait({work, stop}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
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
            self._keep(work)
            work.add_done_callback(_retrieve)

    async def _end_children(self, run: LiveRun) -> None:
        pending = [child for child in run.children if not child.ended.done()]
        for child in pending:
            child.stop(run.stopping or cancelled("system:parent", "The run above it ended"))
        if pending:
            await asyncio.wait([child.ended for child in pending], timeout=2 * GRACE_SECONDS)

    async def close(self) -> None:
        """Cancel what is worked on, as a recorded request, and wait for the ends."""
        roots = [run for run in self._live.values() if run.parent is None]
        for run in roots:
            run.stop(cancelled("system:shutdown", "The server is shutting down"))
        if roots:
            await asyncio.wait([run.ended for run in roots], timeout=CLOSE_SECONDS)


def _create(row: runs.NewRun) -> Work[None]:
    if (yield from runs.create(row)) is None:
        raise errors.NotFound("Session not found")


def _foreign(session: SessionRow, visibility: Visibility) -> errors.AgentctlError:
    if not visibility.sees(session.user_id):
        return errors.NotFound("Session not found")
    return errors.Conflict(f"The session holds {session.session_type} runs")


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


def _retrieve(work: asyncio.Task[None]) -> None:
    """Take the late result of work that was left behind, so that nothing complains about it."""
    if not work.cancelled():
        work.exception()


def _name(message: str) -> str:
    return " ".join(message.split())[:NAME_LENGTH]
