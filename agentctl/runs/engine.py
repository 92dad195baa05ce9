"""The engine: starts the runs of this process, finds them, and ends them at shutdown.

`runs.supervision` executes a single run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.kinds import ComponentKind
from agentctl.records.log_context import add_log_context
from agentctl.records.run_spec import RunSpec
from agentctl.records.times import now
from agentctl.runs import legs
from agentctl.runs.admission import (
    AdmittedRun,
    IdempotentReplay,
    Submission,
    admit_once,
    admit_run,
    find_admitted,
)
from agentctl.runs.background import (
    admit_background_run,
    build_background_spec,
    plan_background_runs,
    plan_summary,
    requires_background_work,
)
from agentctl.runs.decisions import EXPIRY
from agentctl.runs.live import Continuation, LiveRun, ReportedRun
from agentctl.runs.members import Members
from agentctl.runs.states import CLIENT_DISCONNECTED, Ending, Pause
from agentctl.runs.supervision import DATABASE_UNAVAILABLE, RunCounters, Supervision
from agentctl.runs.tasks import Tasks, retry_while_unavailable
from agentctl.runs.turns import Starts
from agentctl.runs.worker import Worker
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.store.database import Database, Work
from agentctl.store.databases import Databases
from agentctl.store.repositories import run_reads

CLOSE_SECONDS = 5.0
"""Maximum time that a closing engine waits for the final status of its runs."""

SEARCHES, SEARCH_SECONDS = 600, 1.0
"""Number of searches for a row after a commit with an unknown outcome, and the pause between them.
PostgreSQL ends the transaction of a lost connection after twice the statement timeout."""

_NOT_REPORTED = Ending.cancelled(
    "system:database", "The database failed before the client received the run id"
)

_NO_RESULT = Ending.cancelled(EXPIRY, "The caller did not give the result of its tool in time")
_REVOKED = Ending.cancelled(
    "system:revoked", "The service account that started the run was revoked or has expired"
)

_WORKER_LOST = Ending.failed("WORKER_LOST", "The worker of the run was declared dead")

_log = logging.getLogger("agentctl.runs")


@dataclass(frozen=True, slots=True)
class KeyedRun:
    """The run that an earlier request with the same idempotency key has started."""

    run_id: str


class Engine:
    """The runs that this process executes.

    Attributes:
        closing: set when the process shuts down and waiting callers have to return.
        draining: True if new runs are refused because the process shuts down.
        counters: counts of the runs since the process started.
        model_counters: counts of further attempts of their model calls.
    """

    def __init__(
        self, databases: Databases, catalog: Catalog, settings: Settings, worker: Worker
    ) -> None:
        self.closing = asyncio.Event()
        self.draining = False
        self.counters = RunCounters()
        self.model_counters = catalog.models.counters
        self._worker = worker
        self._databases = databases
        self._catalog = catalog
        self._settings = settings
        self._live: dict[str, LiveRun] = {}
        self._claiming: set[str] = set()
        self._has_live = asyncio.Event()
        self._starting = self._root_count = 0
        self._starts = Starts()
        self._shutdown: Ending | None = None
        # All tasks that write to the databases: starts, supervisors and ends of runs.
        self._run_tasks = Tasks()
        self._search_tasks = Tasks()
        self._members = Members(self, self._run_tasks, settings.limits)
        self._shared: dict[str, Any] = {
            "databases": databases,
            "limits": settings.limits,
            "members": self._members,
        }
        self._supervision = Supervision(catalog, self._run_tasks, self.counters, self._starts)

    @property
    def worker_id(self) -> str:
        return self._worker.id

    @property
    def _is_full(self) -> bool:
        return self._starting + self._root_count >= self._settings.limits.concurrent_runs

    def find_run(self, run_id: str) -> LiveRun | None:
        return self._live.get(run_id)

    def find_spans(self, run_id: str) -> list[dict[str, Any]] | None:
        """Return the spans so far of a run that this process executes, or None."""
        run = self._live.get(run_id)
        return None if run is None else run.transcript.spans.records()

    def find_metrics(self, run_id: str) -> dict[str, int | None] | None:
        """Return the token counters so far of a run that this process executes, or None."""
        run = self._live.get(run_id)
        return None if run is None else run.transcript.metrics

    def live_runs(self) -> list[LiveRun]:
        return list(self._live.values())

    async def wait_for_live_run(self) -> None:
        await self._has_live.wait()

    def root_runs(self) -> list[LiveRun]:
        return [run for run in self._live.values() if run.parent is None]

    @property
    def waiting_members(self) -> int:
        """Number of members that wait until they may execute (`limits.concurrent_members`)."""
        return self._members.waiting

    async def submit(self, submission: Submission) -> LiveRun | KeyedRun:
        """Commit the row of a root run and start its work.

        The caller of a streamed run calls `complete_start` when it has sent the first event.

        Returns:
            The run, or the earlier run of a repeated request.

        Raises:
            NotFound: the session is not visible to the caller.
            Conflict: the session is of another kind, or it is busy and the component rejects that.
            TooManyRequests: `limits.concurrent_runs` root runs are live already.
            Unavailable: the process shuts down, or the database does not answer.
        """
        if self.draining:
            raise errors.Unavailable("The server is shutting down")
        if self._is_full:
            raise errors.TooManyRequests("Too many runs at once")
        run = self.build_run(submission.spec, submission.component)
        add_log_context(session_id=run.spec.session_id, run_id=run.run_id)
        self._starting += 1
        self._starts.begin(run.run_id)
        is_followed = False
        try:
            await self.start(run, partial(admit_run, submission, self._catalog))
        except IdempotentReplay as replayed:
            add_log_context(run_id=replayed.run_id)
            return KeyedRun(replayed.run_id)
        except asyncio.CancelledError:
            if not submission.outlives_caller:
                run.stop(Ending.cancelled(submission.actor, CLIENT_DISCONNECTED))
            raise
        else:
            is_followed = run.spec.recorded and not run.spec.background
        finally:
            self._starting -= 1
            if not is_followed:
                self._starts.end(run.run_id)
        return run

    def build_run(
        self,
        spec: RunSpec,
        component: Component,
        parent: LiveRun | None = None,
        continuation: Continuation | None = None,
    ) -> LiveRun:
        """Build a run that this process executes."""
        return LiveRun(spec, component, parent, continuation=continuation, **self._shared)

    def build_reported(
        self,
        spec: RunSpec,
        component: Component,
        parent: LiveRun,
        continuation: Continuation | None = None,
    ) -> ReportedRun:
        """Build the run of a member that a library executes."""
        return ReportedRun(spec, component, parent, continuation=continuation, **self._shared)

    def complete_start(self, run: LiveRun) -> None:
        """Report that the caller of a streamed run has its first event, or has left."""
        self._starts.end(run.run_id)

    async def execute_leg(self, run: LiveRun, claimed: legs.ClaimedLeg) -> None:
        """Start the work of a claimed leg."""
        session_state = claimed.session_state
        self._execute(run, claimed.state.owner or "", AdmittedRun(run.spec, session_state))

    async def continue_run(
        self, database: Database, run_id: str, *, dependencies: str | None = None
    ) -> LiveRun | None:
        """Claim the next leg of a root run and start its work.

        Args:
            dependencies: JSON object of the request that goes on, for the code of the run.

        Returns:
            The run; None if another process has it, nothing is decided, its component is not
            configured here, or this process takes no more runs.

        Raises:
            Unavailable: the database does not answer.
        """
        if self.draining or self._is_full:
            return None
        state = await database.read(run_reads.get_state(run_id))
        if state is None or (state.status, state.owner) != ("PENDING", None):
            return None
        kind = cast(ComponentKind, state.component_type)
        component = self._catalog.get(kind, state.component_id)
        if component is None or run_id in self._claiming:
            return None
        self._claiming.add(run_id)
        claiming = self._run_tasks.start(self._claim_leg(database, component, run_id, dependencies))
        return await asyncio.shield(claiming)

    async def _claim_leg(
        self, database: Database, component: Component, run_id: str, dependencies: str | None
    ) -> LiveRun | None:
        try:
            await self._worker.register()
            # A claim with an unknown outcome is repeated: no one else would execute its leg.
            claimed = await retry_while_unavailable(
                lambda: database.write(legs.claim_leg(run_id, self._worker.id))
            )
            if claimed is None:
                return None
            spec, continuation = legs.build_continuation(claimed)
            spec = replace(spec, dependencies=dependencies)
            run = self.build_run(spec, component, None, continuation)
            if (ending := await self._check_leg(spec, claimed)) is not None:
                run.stop(ending)
            await self.execute_leg(run, claimed)
            return run
        finally:
            self._claiming.discard(run_id)

    async def _check_leg(self, spec: RunSpec, claimed: legs.ClaimedLeg) -> Ending | None:
        """Return the end of a leg that must not execute. Raises nothing: its claim is committed."""
        if claimed.has_effects:
            return _WORKER_LOST
        if claimed.has_expired_call(spec):
            return _NO_RESULT
        with contextlib.suppress(errors.Unavailable):
            revoked = await retry_while_unavailable(
                lambda: self._databases.system.read(legs.is_revoked(spec.actor, now()))
            )
            return _REVOKED if revoked else None
        return DATABASE_UNAVAILABLE

    async def start(self, run: LiveRun, admit: Callable[[str], Work[AdmittedRun]]) -> None:
        """Commit the row of a run and start its work."""
        # A caller that leaves does not interrupt it: a row that is committed needs its supervisor.
        await asyncio.shield(self._run_tasks.start(self._commit_and_execute(run, admit)))

    async def _commit_and_execute(
        self, run: LiveRun, admit: Callable[[str], Work[AdmittedRun]]
    ) -> None:
        outcome_unknown = False

        async def commit() -> tuple[str, AdmittedRun]:
            nonlocal outcome_unknown
            await self._worker.register()
            worker_id = self._worker.id
            admission = admit(worker_id)
            if outcome_unknown:
                admission = admit_once(run.spec, admission)
            try:
                return worker_id, await run.database.write(admission)
            except errors.OutcomeUnknown:
                outcome_unknown = True
                raise

        try:
            if run.parent is None:
                worker_id, admitted = await commit()
            else:
                worker_id, admitted = await retry_while_unavailable(
                    commit, stopped=run.stop_requested
                )
        except errors.Unavailable:
            if outcome_unknown:
                self._search_tasks.start(self._find_uncertain_row(run))
            raise
        self._execute(run, worker_id, admitted)

    async def _find_uncertain_row(self, run: LiveRun) -> None:
        """Search for a row whose commit has an unknown outcome; no one else would end its run.

        The caller got the error. A commit that was sent may still take effect for a while.
        """
        for _ in range(SEARCHES):
            with contextlib.suppress(errors.Unavailable):
                stored = await run.database.read(find_admitted(run.spec))
                if stored is not None:
                    if not run.spec.survives_disconnect:
                        run.stop(_NOT_REPORTED)
                    admitted, owner = stored
                    self._execute(run, owner or "", admitted)
                    return
            await asyncio.sleep(SEARCH_SECONDS)

    def _execute(self, run: LiveRun, worker_id: str, admitted: AdmittedRun) -> None:
        # One step of the event loop: a shutdown or the loss of the worker either finds the run in
        # `_live`, or was before, and then it is found below.
        self._live[run.run_id] = run
        self._root_count += run.parent is None
        self._has_live.set()
        self.counters.started[run.component.kind] += run.attempt == 1
        run.mark_stored(worker_id, admitted)
        if self.draining:
            run.park()
        ending = self._shutdown
        if worker_id != self._worker.id:
            ending = _WORKER_LOST
        if run.parent is not None:
            ending = run.parent.requested_end or ending
        if ending is not None and ending is self._shutdown and run.journal is not None:
            run.hand_over(ending)
        elif ending is not None:
            run.stop(ending)
        self._run_tasks.start(self._supervise(run))

    async def _supervise(self, run: LiveRun) -> None:
        try:
            await self._supervision.supervise(run)
        finally:
            # The next leg of the run may have begun already.
            if self._live.get(run.run_id) is run:
                del self._live[run.run_id]
            self._root_count -= run.parent is None
            if not self._live:
                self._has_live.clear()
        ended = run.ended.result()
        if isinstance(ended, Pause) and ended.continues and run.parent is None:
            # Everything was decided while the run was still at work.
            with contextlib.suppress(errors.AgentctlError):
                await self.continue_run(run.database, run.run_id)
        if not requires_background_work(run) or ended.status != "COMPLETED":
            return
        # After the response: background work never delays it.
        try:
            for spec in await plan_background_runs(run):
                if not self.draining:
                    await self._start_background_run(spec, run.component)
        except errors.AgentctlError as error:
            _log.info("run %s: its background work was not started: %s", run.run_id, error.detail)

    async def _start_background_run(self, spec: RunSpec, component: Component) -> LiveRun:
        run = self.build_run(spec, component)
        await self.start(run, partial(admit_background_run, spec))
        return run

    async def summarize(
        self, component: Component, session_id: str, user_id: str | None, request_id: str
    ) -> LiveRun | None:
        """Start the summary of a session; return None if no run of it is new.

        Raises:
            NotFound: the session was deleted meanwhile.
            Conflict: a summary of the session is being made.
            Unavailable: the process shuts down, or the database does not answer.
        """
        if self.draining:
            raise errors.Unavailable("The server is shutting down")
        database = self._databases[component.database]
        planned = await plan_summary(database, session_id)
        if planned is None:
            return None
        base = RunSpec(
            run_id="",
            session_id=session_id,
            component_type=component.kind,
            component_id=component.id,
            user_id=user_id,
            input="",
            time_limit=self._settings.runs.timeout_seconds,
            tool_timeout=self._settings.runs.tool_timeout_seconds,
            request_id=request_id,
        )
        spec = build_background_spec(base, "summary", planned[1])
        return await self._start_background_run(spec, component)

    def handle_worker_lost(self, worker_id: str) -> None:
        """Stop the runs of a worker id that other processes declared dead and whose runs they
        ended.
        """
        for run in self.root_runs():
            if run.worker_id == worker_id:
                run.stop(_WORKER_LOST)

    async def drain(self, seconds: float) -> None:
        """Refuse new runs, and wait up to `seconds` for the live runs.

        Durable runs are handed over to other processes as soon as their present call has ended.
        """
        self.draining = True
        for run in self.live_runs():
            run.park()
        await self._run_tasks.wait_until_empty(seconds)

    async def cancel_runs(self) -> None:
        """Cancel the live runs with a recorded request and wait for their final status.

        Durable runs are handed over instead: their present call is in doubt.

        Writes that the database did not accept within `CLOSE_SECONDS` are abandoned. Followers of
        the runs of other processes are not affected.
        """
        self.draining = True
        self._shutdown = Ending.cancelled("system:shutdown", "The server is shutting down")
        for run in self.root_runs():
            if run.journal is None:
                run.stop(self._shutdown)
            else:
                run.hand_over(self._shutdown)
        await self._run_tasks.wait_until_empty(CLOSE_SECONDS)

    async def close(self) -> None:
        """Cancel the live runs, see `cancel_runs`, and release all waiting callers."""
        self.closing.set()
        await self._search_tasks.cancel_all()
        await self.cancel_runs()
        await self._run_tasks.cancel_all()
