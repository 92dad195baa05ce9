"""Claims: this process takes the legs that any server may execute, and queued runs.

A leg is claimed by one conditional update, so of several processes exactly one has it. The process
that has let it begin claims it at once; the others are notified (`LegWatch`), and the sweep finds
what a lost notification has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunState
from agentctl.records.times import now
from agentctl.runs.desk.decisions import EXPIRY
from agentctl.runs.desk.messages import settle_left_messages
from agentctl.runs.desk.waiting import cancel_run, end_overdue_run
from agentctl.runs.engine.versions import VersionGate
from agentctl.runs.life import legs
from agentctl.runs.life.admission import Admission
from agentctl.runs.life.live import LiveRun
from agentctl.runs.life.supervision import DATABASE_UNAVAILABLE
from agentctl.runs.states import WORKER_LOST, Ending
from agentctl.runs.workers.worker import Worker
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import find_version
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import halts, queue, run_messages, run_reads
from agentctl.store.repositories.halts import HaltRow
from agentctl.store.repositories.queue import NextLeg
from agentctl.store.repositories.workers import Heartbeat
from agentctl.work.event_loop import Tasks, retry_while_unavailable

QUEUE_SECONDS = 86_400
"""Maximum wait of a run in the queue."""

PARALLEL_CLAIMS = 16
"""Maximum number of legs that a process claims at the same time."""

LEGS_PER_READ = 100
"""Legs that one query offers at most."""

SPARE_LEGS = 4
"""Legs offered beyond the free slots: other processes take some of them first."""

ADVANCE_SECONDS = 10.0
"""Interval of the searches for what a process has left undone when it died.

That is: sessions whose next run has not got its turn, and cancels that nothing carries out.
"""

ATTEND_SECONDS = 0.1
"""Interval of the attempts of a local command to begin its run."""

_NO_RESULT = Ending.cancelled(EXPIRY, "The caller did not give the result of its tool in time")
_REVOKED = Ending.cancelled(
    "system:revoked", "The service account that started the run was revoked or has expired"
)

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))


class LegClaims:
    """Claims legs for an engine."""

    def __init__(
        self,
        host: legs.LegHost,
        databases: Databases,
        catalog: Catalog,
        worker: Worker,
        run_tasks: Tasks,
    ) -> None:
        self.is_serving = False
        """True if this process claims what other processes have admitted.

        A local command does not: its runs end with it.
        """

        self._host = host
        self._gate = host.services.gate
        self._seen_heartbeat: Heartbeat | None = None
        self._databases = databases
        self._catalog = catalog
        self._worker = worker
        self._run_tasks = run_tasks
        self._versions = VersionGate(catalog, databases)
        # The ids of the runs that this process claims at the moment.
        self._claiming: set[str] = set()

        self.waiting: dict[str, Database] = {}
        """The databases with runs that wait for a free slot of this process, by their ids."""

        # The passes under way by the ids of their databases; True if it has to be repeated.
        self._passes: dict[str, bool] = {}

    def handle_end(self, run: LiveRun) -> None:
        """Claim what may begin after the end of a root run of this process."""
        if run.lets_begin:
            self.wake(run.database)
        for database in list(self.waiting.values()):
            self.wake(database)

    def wake(self, database: Database) -> None:
        """Claim soon what this process can execute of a database, if it serves."""
        if not self.is_serving:
            return

        if database.id in self._passes:
            # The pass under way may have read before the change.
            self._passes[database.id] = True
        else:
            self._passes[database.id] = False
            self._run_tasks.start(self._claim_soon(database))

    async def _claim_soon(self, database: Database) -> None:
        """Make one pass over a database, and another one if `wake` was called meanwhile."""
        try:
            await self.claim_waiting(database)
        except errors.AgentctlError:
            # The sweep tries again.
            _rate_limited.log("runs that wait in database %s could not be claimed", database.id)
        finally:
            if self._passes.pop(database.id):
                self.wake(database)

    def leave_in_queue(self, run: LiveRun, admission: Admission) -> None:
        """Leave a committed run to any server; cancel it if it is stopped, or already was."""

        def cancel(_: object) -> None:
            self._run_tasks.start(_cancel_queued(run))

        # A future that is done calls it, too.
        run.stop_requested.add_done_callback(cancel)
        if admission.may_begin:
            self.wake(run.database)

    async def attend(self, database: Database, run_id: str) -> None:
        """Begin a run that this process has admitted, as soon as it may; for a local command."""
        while True:
            with contextlib.suppress(errors.Unavailable):
                state = await database.read(run_reads.get_state(run_id))
                if state is None or (state.status, state.owner) != ("PENDING", None):
                    return
                await self.claim(database, run_id, state)
            await asyncio.sleep(ATTEND_SECONDS)

    async def end_overdue(self, database: Database) -> None:
        """End the runs that have waited in the queue for too long."""
        limit = QUEUE_SECONDS * 1_000_000
        before = now() - limit
        overdue_ids = await database.read(queue.list_overdue(before))
        if overdue_ids:
            # The clock of this machine may be ahead of the clocks of other machines.
            before = min(before, await database.clock() - limit)
            overdue_ids = await database.read(queue.list_overdue(before))

        ended_halts: list[HaltRow] = []
        if overdue_ids:
            await self._gate.halts.learn()
            ended_halts = await self._databases.system.read(halts.list_ended_since(before))

        for run_id in overdue_ids:
            state = await database.read(run_reads.get_state(run_id))
            if state is None or self._gate.has_held(state, ended_halts):
                continue
            ended_run = await database.write(end_overdue_run(database.outbox, run_id, before))
            if ended_run is not None:
                counters = self._host.counters
                counters.count_finished(ended_run.run.component_type, ended_run.ending)
            database.outbox.wake()

    async def advance_stalled(self, database: Database) -> None:
        """Give forgotten turns to queued runs, and carry out forgotten cancels and messages."""
        for session_id in await database.read(queue.list_stalled(), size="large"):
            if await database.write(queue.advance_stalled(session_id, now())):
                self.wake(database)

        for run_id in await database.read(
            run_messages.list_ended_runs_with_messages(), size="large"
        ):
            if await database.write(settle_left_messages(run_id)):
                self.wake(database)

        listing = run_reads.list_cancelled_without_owner()
        for run_id in await database.read(listing, size="large"):
            await database.write(cancel_run(database.outbox, run_id, "system", None))
            database.outbox.wake()

    async def claim_in_open_databases(self) -> None:
        """Claim what waits in the open databases.

        The system database is asked only if a new heartbeat has shown that a run waits there.
        """
        earlier_heartbeat = self._seen_heartbeat
        heartbeat = self._worker.heartbeat
        self._seen_heartbeat = heartbeat
        waits_in_system = False
        if heartbeat is not None and heartbeat is not earlier_heartbeat:
            waits_in_system = heartbeat.has_waiting_runs

        for database in self._databases.get_open().values():
            if database is not self._databases.system or waits_in_system:
                await self.claim_waiting(database)

    async def claim_waiting(self, database: Database) -> None:
        """Claim the legs that wait in a database, oldest first, for as many slots as are free."""
        await self._gate.halts.learn()
        last_leg: NextLeg | None = None
        limit = min(max(self._host.free_slots, 0) + SPARE_LEGS, LEGS_PER_READ)
        while True:
            page = await database.read(queue.list_next_legs(limit, last_leg))
            if await self._claim_some(database, [leg.state for leg in page]):
                # The next slot that becomes free continues here (`handle_end`).
                self.waiting[database.id] = database
                return
            if len(page) < limit:
                self.waiting.pop(database.id, None)
                return

            # Some legs of the page belong to other processes by now, or to components that are not
            # configured here: slots are still free.
            last_leg = page[-1]
            limit = LEGS_PER_READ

    async def _claim_some(self, database: Database, states: Sequence[RunState]) -> bool:
        """Claim runs; return True if more wait than this process has slots for."""
        executable_states = list[RunState]()
        for state in states:
            is_configured = self._versions.find_component(database, state) is not None
            if is_configured and self._gate.may_claim(state):
                executable_states.append(state)

        while executable_states:
            count = min(self._host.free_slots, PARALLEL_CLAIMS)
            if count <= 0:
                return True

            group = executable_states[:count]
            executable_states = executable_states[count:]
            await asyncio.gather(*(self.claim(database, state.run_id, state) for state in group))
        return False

    async def claim(
        self,
        database: Database,
        run_id: str,
        state: RunState | None = None,
        *,
        dependencies: str | None = None,
    ) -> LiveRun | None:
        """Claim the next leg of a root run and start its work.

        Args:
            state: the state of the run, if it was read before.
            dependencies: JSON object of the request that continues the run, for its code.

        Returns:
            The run; None if another process has it, nothing is decided, it is not its turn, its
            component is not configured here or has a version with which it does not continue, a
            halt holds it, or this process takes no more runs.
        """
        if self._host.free_slots <= 0:
            self.waiting[database.id] = database
            return None

        state = state or await database.read(run_reads.get_state(run_id))
        if state is None or (state.status, state.owner) != ("PENDING", None):
            return None
        if state.waits_for_turn or run_id in self._claiming:
            return None
        await self._gate.halts.learn()
        if not self._gate.may_claim(state) or run_id in self._claiming:
            return None

        # A caller that leaves does not interrupt it: a row that is claimed needs its supervisor.
        self._claiming.add(run_id)
        claiming = self._run_tasks.start(self._claim(database, state, dependencies))
        return await asyncio.shield(claiming)

    async def _claim(
        self, database: Database, state: RunState, dependencies: str | None
    ) -> LiveRun | None:
        run_id = state.run_id
        try:
            component = await self._versions.choose(database, state)
            if component is None:
                return None

            with self._host.held_slots:
                await self._worker.register()
                version = find_version(self._catalog, component)
                claimed = await self._claim_leg(database, run_id, version)
                if claimed is None:
                    return None

                # The row is committed: no other process executes the leg.
                if claimed.lets_begin:
                    self.wake(database)
                self._count_wait(claimed.state)

                spec, start = legs.build_leg_input(claimed)
                spec = replace(spec, dependencies=dependencies)
                run = LiveRun(spec, component, self._host.services, start=start)
                ending = await self._check_leg(spec, claimed)
                if ending is not None:
                    run.stop(ending)
                self._host.execute_leg(run, claimed)
                return run
        finally:
            self._claiming.discard(run_id)

    def _count_wait(self, state: RunState) -> None:
        """Count the time for which a run has waited in the queue before its first leg."""
        if state.attempt == 1 and state.queued_at is not None:
            waited_seconds = max(now() - state.queued_at, 0) / 1_000_000
            self._host.counters.queue_seconds.add(waited_seconds)

    async def _claim_leg(
        self, database: Database, run_id: str, version: str | None
    ) -> legs.ClaimedLeg | None:
        """Repeat a claim with an unknown outcome: no one else would execute its leg."""
        is_repeated = False

        def claim() -> Awaitable[legs.ClaimedLeg | None]:
            nonlocal is_repeated
            work = legs.claim_leg(run_id, self._worker.id, version, is_repeated=is_repeated)
            is_repeated = True
            return database.write(work)

        return await retry_while_unavailable(claim)

    async def _check_leg(self, spec: RunSpec, claimed: legs.ClaimedLeg) -> Ending | None:
        """Return the end of a leg that must not execute; None if it may.

        Raises nothing: the claim is committed, so the leg has to execute or to end.
        """
        if claimed.has_effects:
            return WORKER_LOST
        if claimed.has_expired_call(spec):
            return _NO_RESULT

        try:
            is_revoked = await retry_while_unavailable(
                lambda: self._databases.system.read(legs.is_revoked(spec.actor, now()))
            )
        except errors.Unavailable:
            return DATABASE_UNAVAILABLE
        return _REVOKED if is_revoked else None


async def _cancel_queued(run: LiveRun) -> None:
    """Cancel a run in the queue whose stop was requested in this process."""
    ending = run.requested_end
    outbox = run.database.outbox
    assert ending is not None
    cancel = cancel_run(outbox, run.run_id, ending.actor or "system", ending.reason)
    await retry_while_unavailable(lambda: run.database.write(cancel))
    outbox.wake()
