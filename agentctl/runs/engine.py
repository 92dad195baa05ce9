"""Everything that a process works on: runs begin here, are found here, and are ended at its close.

How one run is worked is in `runs.supervision`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.ids import new_id
from agentctl.records.log_context import add_log_context
from agentctl.runs.admission import (
    IdempotentReplay,
    Submission,
    admit_member_run,
    admit_once,
    admit_run,
)
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending, cancelled, failed
from agentctl.runs.supervision import RunCounters, Supervision
from agentctl.runs.tasks import Tasks, retry_while_unavailable
from agentctl.runs.worker import Worker
from agentctl.runtime.catalog import Catalog, Component
from agentctl.runtime.context import MemberResult
from agentctl.store.database import Database, Work
from agentctl.store.repositories import runs

__all__ = ["CLIENT_DISCONNECTED", "EarlierRun", "Engine"]

CLOSE_SECONDS = 5.0
"""How long a closing engine waits for its runs to be final."""

CLIENT_DISCONNECTED = "The client went away"
"""The reason of the cancel of a run whose caller did not wait for it."""

SEARCHES, SEARCH_SECONDS = 600, 1.0
"""How often, and with which pause, it is looked for a row that may be there: PostgreSQL ends the
transaction of a connection that is gone after twice the time of a statement."""

_UNREPORTED = cancelled("system:database", "Its caller could not be told that it was there")

_WORKER_LOST = failed("WORKER_LOST", "The process that worked on the run was taken for dead")


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A submission has been made before, and this is its run."""

    run_id: str


class Engine:
    """Everything that this process works on.

    Args:
        databases: the open databases by id.
        catalog: what is hosted.
        settings: limits and time-outs.
        worker: this process, as the rows of its runs name it.

    Attributes:
        stopping: set once the process ends its runs, and nobody is to wait here any longer.
        tally: counts them.
    """

    def __init__(
        self,
        databases: Mapping[str, Database],
        catalog: Catalog,
        settings: Settings,
        worker: Worker,
    ) -> None:
        self.stopping = asyncio.Event()
        self.tally = RunCounters()
        self._worker = worker
        self._databases = databases
        self._catalog = catalog
        self._settings = settings
        self._live: dict[str, LiveRun] = {}
        self._starting = 0
        self._draining = False
        self._closing: Ending | None = None
        # Beginnings, supervisors and ends of runs: what needs the databases.
        self._lives = Tasks()
        self._search_tasks = Tasks()
        self._supervision = Supervision(catalog, self._lives, Tasks(), self.tally)

    @property
    def draining(self) -> bool:
        """Whether new runs are refused because the process is to end."""
        return self._draining

    @property
    def worker_id(self) -> str:
        """The worker that rows of new runs name as their owner."""
        return self._worker.id

    def live(self, run_id: str) -> LiveRun | None:
        """The run, when this process works on it."""
        return self._live.get(run_id)

    def live_runs(self) -> list[LiveRun]:
        """The runs that this process works on."""
        return list(self._live.values())

    def roots(self) -> list[LiveRun]:
        """Those of them that no other run asked for."""
        return [run for run in self._live.values() if run.parent is None]

    async def submit(self, submission: Submission) -> LiveRun | EarlierRun:
        """Commit the run's row, then start the work.

        Returns:
            The run, or which one it is when the same request was made before.

        Raises:
            NotFound: the session is not the caller's.
            Conflict: the session is of another kind, or busy and the component wants it alone.
            TooManyRequests: `limits.concurrent_runs` are worked on already.
            Unavailable: the process is to end, or the database does not answer.
        """
        self._check_room()
        run = self._new_run(submission)
        add_log_context(session_id=run.session_id, run_id=run.run_id)
        self._starting += 1
        try:
            await self._begin(run, lambda owner: admit_run(run, submission, self._catalog, owner))
        except IdempotentReplay as replayed:
            add_log_context(run_id=replayed.run_id)
            return EarlierRun(replayed.run_id)
        except asyncio.CancelledError:
            if not submission.goes_on:
                run.stop(cancelled(submission.actor, CLIENT_DISCONNECTED))
            raise
        finally:
            self._starting -= 1
        return run

    def _check_room(self) -> None:
        if self._draining:
            raise errors.Unavailable("The server is shutting down")
        if self._starting + len(self.roots()) >= self._settings.limits.concurrent_runs:
            raise errors.TooManyRequests("Too many runs at once")

    def _new_run(self, submission: Submission) -> LiveRun:
        return LiveRun(
            submission.run_id,
            submission.session_id,
            submission.component,
            submission.message,
            user_id=submission.user_id,
            parent=None,
            recorded=submission.recorded,
            goes_on=submission.goes_on or submission.idempotency is not None,
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
            recorded=False,
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
            await self._begin(run, lambda owner: admit_member_run(run, owner))
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

    async def _begin(self, run: LiveRun, admission: Callable[[str], Work[None]]) -> None:
        """Commit the row and start the work, not torn apart when the caller is cancelled."""
        await asyncio.shield(self._lives.start(self._commit_and_start(run, admission)))

    async def _commit_and_start(self, run: LiveRun, admission: Callable[[str], Work[None]]) -> None:
        try:
            if run.parent is None:
                owner = await self._commit(run, admission)
            else:
                commit = partial(self._commit, run, admission)
                owner = await retry_while_unavailable(commit, stopped=run.stop_requested)
        except errors.Unavailable:
            if run.row_uncertain:
                self._search_tasks.start(self._find_uncertain_row(run))
            raise
        self._start_work(run, owner)

    async def _commit(self, run: LiveRun, admission: Callable[[str], Work[None]]) -> str:
        """Write the row, unless an earlier attempt has; returns the worker that it names."""
        await self._worker.enlist()
        owner = self._worker.id
        work = admission(owner)
        try:
            await run.database.write(admit_once(run, work) if run.row_uncertain else work)
        except errors.OutcomeUnknown:
            run.row_uncertain = True
            raise
        return owner

    async def _find_uncertain_row(self, run: LiveRun) -> None:
        """Look for a row that may be there or not, and that nobody else would work on or end.

        Its caller was told so. A commit that was sent may still arrive for a while.
        """
        for _ in range(SEARCHES):
            with contextlib.suppress(errors.Unavailable):
                state = await run.database.read(runs.get_state(run.run_id))
                if state is not None:
                    if not run.goes_on:
                        run.stop(_UNREPORTED)
                    self._start_work(run, state.owner or "")
                    return
            await asyncio.sleep(SEARCH_SECONDS)

    def _start_work(self, run: LiveRun, owner: str) -> None:
        """Work on a run whose row is there."""
        self._live[run.run_id] = run
        self.tally.begin(run.component.kind)
        run.begin(owner)
        stopping = self._closing
        if owner != self._worker.id:
            # Taken for dead meanwhile, and `lose` did not know of this run yet.
            stopping = _WORKER_LOST
        if run.parent is not None:
            stopping = run.parent.stopping or stopping
        if stopping is not None:
            run.stop(stopping)
        self._lives.start(self._supervise(run))

    async def _supervise(self, run: LiveRun) -> None:
        try:
            await self._supervision.supervise(run)
        finally:
            del self._live[run.run_id]

    def handle_worker_lost(self, owner: str) -> None:
        """This process was taken for dead as that worker: its runs have ended without it."""
        for run in self.roots():
            if run.owner == owner:
                run.stop(_WORKER_LOST)

    async def drain(self, seconds: float) -> None:
        """Refuse new runs, and wait up to `seconds` for those under way."""
        self._draining = True
        await self._lives.done(seconds)

    async def cancel_runs(self) -> None:
        """Cancel what is worked on, as a recorded request, and wait for the ends.

        What the database has not taken after `CLOSE_SECONDS` is given up. Who follows a run of
        another process here goes on.
        """
        self._draining = True
        self._closing = cancelled("system:shutdown", "The server is shutting down")
        for run in self.roots():
            run.stop(self._closing)
        await self._lives.done(CLOSE_SECONDS)

    async def close(self) -> None:
        """Cancel what is worked on, see `cancel_runs`, and let go of whoever waits here."""
        self.stopping.set()
        await self._search_tasks.end()
        await self.cancel_runs()
        await self._lives.end()
