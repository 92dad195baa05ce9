"""The engine: starts the runs of this process, finds them, and ends them at shutdown.

`runs.life.supervision` executes a single run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.logs import add_log_context, parse_run_trace
from agentctl.records.run_spec import RunSpec
from agentctl.runs.desk.messages import StoredMessage
from agentctl.runs.engine.claims import LegClaims
from agentctl.runs.gate.gate import Gate
from agentctl.runs.life import legs
from agentctl.runs.life.admission import (
    Admission,
    HeldSlots,
    IdempotentReplay,
    Submission,
    admit_once,
    admit_run,
    find_admission,
)
from agentctl.runs.life.background import (
    admit_background_run,
    build_background_spec,
    plan_background_runs,
    plan_summary,
    requires_background_work,
)
from agentctl.runs.life.live import LiveRun, RunServices
from agentctl.runs.life.members import Members
from agentctl.runs.life.run_files import RunFiles
from agentctl.runs.life.supervision import Starts, Supervision
from agentctl.runs.life.tracing import RunTracer
from agentctl.runs.states import (
    CLIENT_DISCONNECTED,
    SHUTTING_DOWN,
    WORKER_LOST,
    Ending,
    Pause,
    RunCounters,
)
from agentctl.runs.workers.worker import Worker
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import find_version
from agentctl.runtime.failures import CauseReader
from agentctl.store.database import Database, Work
from agentctl.store.databases import Databases
from agentctl.store.uploads import Uploads
from agentctl.work.event_loop import Tasks, build_abandoned_outcome, retry_while_unavailable

CLOSE_SECONDS = 5.0
"""Maximum time that an engine waits for the final status of its runs, once it has ended them."""

SEARCHES = 600
"""Number of searches for a row after a commit with an unknown outcome.

PostgreSQL ends the transaction of a lost connection after twice the statement timeout, so the
searches last longer.
"""

SEARCH_SECONDS = 1.0
"""Pause between two of these searches."""

_NOT_REPORTED = Ending.cancelled(
    "system:database", "The database failed before the client received the run id"
)

_log = logging.getLogger("agentctl.runs")


class Engine:
    """The runs that this process executes."""

    def __init__(
        self,
        databases: Databases,
        catalog: Catalog,
        settings: Settings,
        worker: Worker,
        gate: Gate,
        tracer: RunTracer | None = None,
    ) -> None:
        # What this process gives its runs.
        self.tracer = tracer
        self.model_counters = catalog.models.counters
        self._worker = worker
        self._databases = databases
        self._catalog = catalog
        self._settings = settings

        # The runs that it executes, and how many more it may.
        self.counters = RunCounters()
        self._live: dict[str, LiveRun] = {}
        self._has_live = asyncio.Event()
        self.held_slots = HeldSlots()
        self._root_count = 0
        self._starts = Starts()

        # How it shuts down.
        self.closing = asyncio.Event()
        """Set when the process shuts down and waiting callers have to return."""

        self.draining = False
        """True if new runs are refused because the process shuts down."""

        self._shutdown: Ending | None = None
        self._abandons_at: float | None = None

        # All tasks that write to the databases: starts, supervisors and ends of runs.
        self._run_tasks = Tasks()
        self._search_tasks = Tasks()

        self.uploads = Uploads(settings.files)
        """The files that this process receives, and their store."""

        self._members = Members(self, self._run_tasks, catalog)
        self.services = RunServices(
            databases=databases,
            limits=settings.limits,
            members=self._members,
            cause_reader=CauseReader(settings),
            gate=gate,
            open_files=partial(RunFiles, uploads=self.uploads, quotas=settings.quotas),
        )

        self._supervision = Supervision(
            catalog, self._run_tasks, self.counters, self._starts, gate, tracer
        )
        self.claims = LegClaims(self, databases, catalog, worker, self._run_tasks)
        gate.halts.on_change = self._handle_halts_changed

    def _handle_halts_changed(self) -> None:
        """Claim what a halt that has ended has held."""
        for database in self._databases.get_open().values():
            self.claims.wake(database)

    @property
    def worker_id(self) -> str:
        return self._worker.id

    @property
    def free_slots(self) -> int:
        """Number of root runs that this process would start now; 0 while it shuts down."""
        if self.draining:
            return 0
        return self._settings.limits.concurrent_runs - self.held_slots.count - self._root_count

    @contextlib.contextmanager
    def admitting(self, component: Component, *, background: bool) -> Iterator[bool]:
        """Hold a slot for the start of a root run; yield True if it has to wait in the queue.

        Enter it before any other work for the run.

        Raises:
            TooManyRequests: `limits.concurrent_runs` root runs are live already, and the run cannot
                wait.
            Unavailable: the process shuts down, or live runs wait for connections.
        """
        self.check_open(self._databases[component.database])
        # A free slot is for the runs that wait already.
        is_full = self.free_slots <= 0 or component.database in self.claims.waiting
        if is_full and not background and not component.queues_when_busy:
            raise errors.TooManyRequests("Too many runs at once")

        with self.held_slots:
            yield is_full

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

    def has_live_runs(self) -> bool:
        return bool(self._live)

    async def wait_for_live_run(self) -> None:
        await self._has_live.wait()

    def root_runs(self) -> list[LiveRun]:
        return [run for run in self._live.values() if run.parent is None]

    @property
    def waiting_members(self) -> int:
        """Number of members that wait until they may execute."""
        return self._members.waiting

    async def submit(self, submission: Submission, *, is_full: bool) -> LiveRun | Admission:
        """Commit the row of a root run, and start its work unless it has to wait.

        The caller of a streamed run calls `complete_start` when it has sent the first event.

        Args:
            is_full: as of `admitting`, whose slot the caller holds.

        Returns:
            The run that this process executes. Or its admission: it waits in the queue, or an
            earlier request with the same key has started it.

        Raises:
            NotFound: the session is not visible to the caller.
            Conflict: the session is of another kind, or it is busy and the component rejects that.
            TooManyRequests: the queue is full.
            Unavailable: the database does not answer.
        """
        if self.tracer is not None:
            submission = replace(submission, spec=self.tracer.place(submission.spec))
        run = LiveRun(submission.spec, submission.component, self.services)

        add_log_context(session_id=run.spec.session_id, run_id=run.run_id)
        trace = parse_run_trace(run.spec.trace)
        if trace is not None:
            add_log_context(trace_id=trace.own.trace_id)

        self._starts.begin(run.run_id)
        is_followed = False
        try:
            admit = partial(admit_run, submission, self._catalog, is_full=is_full)
            admission = await self.start(run, admit)
            if admission.is_queued:
                return admission
        except IdempotentReplay as replayed:
            add_log_context(run_id=replayed.run_id)
            return Admission(run.spec, earlier_run_id=replayed.run_id)
        except asyncio.CancelledError:
            if not submission.outlives_caller:
                run.stop(Ending.cancelled(run.spec.actor or "system", CLIENT_DISCONNECTED))
            raise
        else:
            is_followed = run.spec.recorded and not run.spec.background
        finally:
            if not is_followed:
                self._starts.end(run.run_id)

        return run

    def check_open(self, database: Database) -> None:
        """Raise Unavailable if the process shuts down, or live runs wait for connections."""
        if self.draining:
            raise errors.Unavailable(SHUTTING_DOWN)
        if database.is_late:
            raise errors.Unavailable(
                "The database is busy",
                cause="live runs wait for its connections",
                hint="try again; see pool_size of [[databases]]",
            )

    def handle_message(self, database: Database, message: StoredMessage) -> None:
        """Act on a message that was stored for a run, which any process may execute."""
        row = message.row
        live_run = self._live.get(row.run_id)
        if live_run is not None:
            live_run.note_messages()
        if message.may_begin:
            self.claims.wake(database)
        if not self.claims.is_serving:
            self._search_tasks.start(self._attend_message(database, row.message_id, live_run))

    async def _attend_message(
        self, database: Database, message_id: str, live_run: LiveRun | None
    ) -> None:
        """Begin the run that a message becomes, as soon as it may; for a local command.

        Args:
            live_run: the run that the message was sent to, if this process executes it.
        """
        if live_run is not None:
            await asyncio.wait({live_run.ended})
        await self.claims.attend(database, message_id)

    def complete_start(self, run: LiveRun) -> None:
        """Report that the caller of a streamed run has its first event, or has left."""
        self._starts.end(run.run_id)

    def execute_leg(self, run: LiveRun, claimed: legs.ClaimedLeg) -> None:
        """Start the work of a claimed leg."""
        self._execute(run, Admission(run.spec, claimed.state.owner, claimed.session_state))

    async def start(self, run: LiveRun, admit: Callable[[str], Work[Admission]]) -> Admission:
        """Commit the row of a run, and start its work unless it waits in the queue."""
        # A caller that leaves does not interrupt it: a row that is committed needs its supervisor.
        begun: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        self._run_tasks.start(self._commit_and_supervise(run, admit, begun))
        try:
            return await begun
        except asyncio.CancelledError:
            if begun.cancelled():
                # The caller gives its slot back, which is not free before the commit ends.
                self.held_slots.count += 1
            raise

    async def _commit_and_supervise(
        self,
        run: LiveRun,
        admit: Callable[[str], Work[Admission]],
        begun: asyncio.Future[Admission],
    ) -> None:
        """Commit the row of a run and execute it to its end.

        Args:
            begun: gets the outcome of the commit; cancelled if the caller has left.
        """
        try:
            admission = await self._begin(run, admit)
        except BaseException as error:
            if not begun.done():
                begun.set_exception(error)
                # Read it: the caller may leave before it does, and asyncio would log it.
                begun.exception()
            raise
        finally:
            if begun.cancelled():
                # The slot of the caller, which `start` has kept for this commit.
                self.held_slots.count -= 1

        if not begun.done():
            begun.set_result(admission)
        if not admission.is_queued:
            await self._supervise(run)

    async def _begin(self, run: LiveRun, admit: Callable[[str], Work[Admission]]) -> Admission:
        """Commit the row of a run, and enter it unless it waits in the queue."""
        admission = await self._commit(run, admit)
        if not admission.is_queued:
            self._enter(run, admission)
            return admission

        self.claims.leave_in_queue(run, admission)
        if not self.claims.is_serving:
            # A local command has no loop that claims runs.
            self._search_tasks.start(self.claims.attend(run.database, run.run_id))
        return admission

    async def _commit(self, run: LiveRun, admit: Callable[[str], Work[Admission]]) -> Admission:
        """Commit the row of a run."""
        outcome_unknown = False

        async def commit() -> Admission:
            nonlocal outcome_unknown
            # At each attempt: the worker may have been declared dead meanwhile.
            worker_id = await self._worker.register()
            work = admit(worker_id)
            if outcome_unknown:
                work = admit_once(run.spec, work)
            try:
                return await run.database.write(work)
            except errors.OutcomeUnknown:
                outcome_unknown = True
                raise

        try:
            if run.parent is None and run.spec.purpose is None:
                # The caller of a root run gets the failure, and may try again.
                return await commit()
            return await retry_while_unavailable(commit, stopped=run.stop_requested)
        except asyncio.CancelledError:
            raise build_abandoned_outcome(run.run_id) from None
        except errors.Unavailable as error:
            if outcome_unknown:
                self._search_tasks.start(self._find_uncertain_row(run))
            if isinstance(error, errors.OutcomeUnknown):
                error.run_id = run.run_id
            raise

    async def _find_uncertain_row(self, run: LiveRun) -> None:
        """Search for a row whose commit has an unknown outcome; no one else would end its run.

        The caller got the error. A commit that was sent may still take effect for a while.
        """
        for _ in range(SEARCHES):
            with contextlib.suppress(errors.Unavailable):
                admission = await run.database.read(find_admission(run.spec))
                if admission is not None:
                    # Stopped before it begins: nobody has its id.
                    if not run.spec.survives_disconnect:
                        run.stop(_NOT_REPORTED)

                    if admission.is_queued:
                        self.claims.leave_in_queue(run, admission)
                    else:
                        self._execute(run, admission)
                    return

            await asyncio.sleep(SEARCH_SECONDS)

    def _execute(self, run: LiveRun, admission: Admission) -> None:
        self._enter(run, admission)
        self._run_tasks.start(self._supervise(run))

    def _enter(self, run: LiveRun, admission: Admission) -> None:
        """Make a run with a committed row a live run of this process.

        One step of the event loop: a shutdown or the loss of the worker either finds the run in
        `_live`, or was before, and then it is found below.
        """
        self._live[run.run_id] = run
        self._has_live.set()
        run.ended.add_done_callback(partial(self._leave, run))
        if run.parent is None:
            self._root_count += 1
        if run.attempt == 1:
            self.counters.started[run.component.kind] += 1
        run.mark_stored(admission)

        if self.draining:
            run.park()
        ending = self._shutdown
        if admission.owner != self._worker.id:
            # This worker was declared dead since the start was stored. The run was not in `_live`
            # when the loss was handled.
            ending = WORKER_LOST
        if run.parent is not None:
            ending = run.parent.requested_end or ending

        if ending is not None and ending is self._shutdown and run.journal is not None:
            run.hand_over(ending)
        elif ending is not None:
            run.stop(ending)

    def _leave(self, run: LiveRun, _: object) -> None:
        # The next leg of the run may have begun already.
        if self._live.get(run.run_id) is run:
            del self._live[run.run_id]
        if run.parent is None:
            self._root_count -= 1
        if not self._live:
            self._has_live.clear()

    async def _supervise(self, run: LiveRun) -> None:
        """Execute a live run to the end of its leg, then start what follows it."""
        await self._supervision.supervise(run)

        if run.parent is None:
            self.claims.handle_end(run)
        end = run.ended.result()
        if isinstance(end, Pause) and end.continues and run.parent is None:
            # Everything was decided while the run was still at work.
            with contextlib.suppress(errors.AgentctlError):
                await self.claims.claim(run.database, run.run_id)

        # After the response: background work never delays it.
        if end.status == "COMPLETED" and requires_background_work(run):
            await self._start_background_runs(run)

    async def _start_background_runs(self, run: LiveRun) -> None:
        """Start the background work that follows a completed run; a failure is only logged."""
        try:
            for spec in await retry_while_unavailable(lambda: plan_background_runs(run)):
                if not self.draining:
                    await self._start_background_run(spec, run.component)
        except errors.AgentctlError as error:
            _log.info("run %s: its background work was not started: %s", run.run_id, error.detail)

    async def _start_background_run(self, spec: RunSpec, component: Component) -> LiveRun:
        if self.tracer is not None:
            # A trace of its own, with a link to the run that it follows.
            base = parse_run_trace(spec.trace)
            spec = self.tracer.place(spec, base.own if base is not None else None)

        run = LiveRun(spec, component, self.services)
        await self.start(run, partial(admit_background_run, spec))
        return run

    async def summarize(
        self, component: Component, session_id: str, user_id: str | None, request_id: str
    ) -> LiveRun | None:
        """Start the summary of a session; return None if the session has no new run.

        Raises:
            NotFound: the session was deleted meanwhile.
            Conflict: a summary of the session is being made.
            Unavailable: the process shuts down, or the database does not answer.
        """
        database = self._databases[component.database]
        self.check_open(database)
        planned = await plan_summary(database, session_id)
        if planned is None:
            return None

        _, plan = planned
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
            version=find_version(self._catalog, component),
        )
        spec = build_background_spec(base, "summary", plan)
        return await self._start_background_run(spec, component)

    def handle_worker_lost(self, worker_id: str) -> None:
        """Stop the runs of a worker id that other processes declared dead."""
        for run in self.root_runs():
            if run.worker_id == worker_id:
                run.stop(WORKER_LOST)

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

        Writes that the database did not accept within `CLOSE_SECONDS` of the first call are
        abandoned. Followers of the runs of other processes are not affected.
        """
        clock = asyncio.get_running_loop().time
        if self._abandons_at is None:
            self._abandons_at = clock() + CLOSE_SECONDS

        # Runs that are committed from now on find this in `_enter`.
        self.draining = True
        self._shutdown = Ending.cancelled("system:shutdown", SHUTTING_DOWN)
        for run in self.root_runs():
            if run.journal is None:
                run.stop(self._shutdown)
            else:
                run.hand_over(self._shutdown)

        await self._run_tasks.wait_until_empty(self._abandons_at - clock())

    async def close(self) -> None:
        """Cancel the live runs, see `cancel_runs`, and release all waiting callers."""
        self.closing.set()
        await self._search_tasks.cancel_all()
        await self.cancel_runs()
        await self._run_tasks.cancel_all()
