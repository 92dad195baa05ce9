"""Cancels: record the request, notify the worker of the run, and wait for the final status.

"Cancel requested" and "stopped" are two facts. The second is read back from the row. Only the
worker of the run writes it, or the process that finds this worker dead, so a cancel never reports
more than is stored (docs/contract.md "Cancel").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from agentctl import errors
from agentctl.records.runs import CancelOutcome, RunState
from agentctl.runs.desk.waiting import cancel_run
from agentctl.runs.engine.changes import DatabaseChanges
from agentctl.runs.engine.engine import Engine
from agentctl.runs.states import CLIENT_DISCONNECTED, Ending, is_final
from agentctl.runs.workers.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.workers.recovery import recover_runs
from agentctl.store.database import Database, Steps, Work, run_topic, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import run_reads
from agentctl.work.event_loop import Tasks

LEAVE_SECONDS = 1.0
"""Time to wait for the end of a run whose caller leaves."""

OWNER_CHECK_SECONDS = 0.5
"""Interval of the checks of a run's worker while a cancel waits for the final status."""

READ_SECONDS = 0.1
"""Interval of the reads of the final status, in case its notification was lost."""

EARLY_SECONDS = 1.0
"""Time after which the reads are as rare as the checks.

A worker that answers finds the request before.
"""


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The outcome of a cancel and the stored state of the run."""

    outcome: CancelOutcome

    state: RunState
    """The last state that was read."""


class Canceller:
    """Cancels runs of this process and of others."""

    def __init__(self, engine: Engine, monitor: WorkerMonitor, changes: DatabaseChanges) -> None:
        self._engine = engine
        self._monitor = monitor
        self._changes = changes
        self._tasks = Tasks()

    async def cancel(
        self,
        database: Database,
        run_id: str,
        *,
        actor: str,
        reason: str | None,
        wait: float,
        extra_write: Callable[[], Work[None]] | None = None,
        known_state: RunState | None = None,
    ) -> CancelResult:
        """Request a cancel and wait up to `wait` seconds for the final status.

        Args:
            actor: the principal that cancels.
            reason: shown with the end of the run; None without one.
            wait: maximum time in seconds; 0 to return at once.
            extra_write: builds further writes for the transaction of the request.
            known_state: the state of the run, if it was read before.

        Raises:
            NotFound: there is no such run; nothing is stored.
            Unavailable: the database does not answer.
        """
        if known_state is not None and is_final(known_state.status):
            # A final status is never replaced.
            if extra_write is not None:
                await database.write(extra_write())
            return CancelResult("already_final", known_state)

        before, state = await database.write(
            _request_cancel(database.outbox, run_id, actor, reason, extra_write)
        )
        if is_final(before.status):
            return CancelResult("already_final", before)
        if is_final(state.status):
            # It was waiting: the transaction of the request has ended it.
            ending = Ending.stored(state)
            self._engine.counters.count_finished(state.component_type, ending)
            database.outbox.wake()

        live_run = self._engine.find_run(run_id)
        if live_run is not None:
            live_run.stop(Ending.requested(state, actor))
            await asyncio.wait([live_run.ended], timeout=wait)
            state = await _read_state(database, run_id) or state
        elif not is_final(state.status):
            state = await self._wait_for_other_worker(database, state, wait)

        if state.status == "CANCELLED":
            return CancelResult("stopped", state)
        if is_final(state.status):
            return CancelResult("already_final", state)
        return CancelResult("requested", state)

    async def cancel_several(
        self, database: Database, run_ids: Iterable[str], *, actor: str, reason: str, wait: float
    ) -> None:
        """Cancel runs together, and wait up to `wait` seconds for the end of all of them.

        A run that cannot be cancelled raises nothing: read afterwards which runs are still open.
        """
        cancels = [
            self.cancel(database, run_id, actor=actor, reason=reason, wait=wait)
            for run_id in run_ids
        ]
        await asyncio.gather(*cancels, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def cancelling_on_leave(
        self, database: Database, run_id: str, actor: str
    ) -> AsyncIterator[None]:
        """Cancel a run that this process may not execute when the caller in the block leaves."""
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            cancelling = self.cancel(
                database, run_id, actor=actor, reason=CLIENT_DISCONNECTED, wait=LEAVE_SECONDS
            )
            await asyncio.wait([self._tasks.start(cancelling)])
            raise

    async def _wait_for_other_worker(
        self, database: Database, state: RunState, wait: float
    ) -> RunState:
        """Wait for the end that another process stores; end the run if that process is dead.

        Returns:
            The last state that was read, after `wait` seconds at most; at once if the run is
            deleted meanwhile.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        next_check = began
        deadline = began + wait
        # Before the first read, so that no later change is missed.
        changes = self._changes.track(database, run_topic(state.run_id))

        while True:
            if loop.time() >= next_check:
                death = await self._monitor.check_owner(state.owner)
                if death is not None:
                    no_heartbeat = death is WorkerDeath.NO_HEARTBEAT
                    await recover_runs(
                        database,
                        state.owner,
                        may_still_run=no_heartbeat,
                        on_ended=self._monitor.on_lost_run,
                    )
                next_check = loop.time() + OWNER_CHECK_SECONDS

            stored_state = await _read_state(database, state.run_id)
            if stored_state is None:
                # The run was deleted with its session: no end will be stored.
                return state

            state = stored_state
            seconds_left = deadline - loop.time()
            if is_final(state.status) or seconds_left <= 0:
                return state

            is_early = loop.time() - began < EARLY_SECONDS
            pause = READ_SECONDS if is_early else OWNER_CHECK_SECONDS
            await changes.wait_for_change(min(seconds_left, pause))


@unit
def _request_cancel(
    outbox: Outbox,
    run_id: str,
    actor: str,
    reason: str | None,
    extra_write: Callable[[], Work[None]] | None,
) -> Steps[tuple[RunState, RunState]]:
    """Record a request with the writes that belong to it; return the states before and after."""
    states = yield from cancel_run(outbox, run_id, actor, reason)
    if states is None:
        raise errors.NotFound("Run not found")

    if extra_write is not None:
        yield from extra_write()
    return states


async def _read_state(database: Database, run_id: str) -> RunState | None:
    """Read the present state of a run; None if it was deleted."""
    return await database.read(run_reads.get_state(run_id))
