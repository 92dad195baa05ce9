"""Cancelling: the request is recorded first, then the owner hears of it, then the end is awaited.

"Asked to stop" and "has stopped" are two facts. The second is read back from the row, which only
the owner of the run writes, or whoever finds that the owner is dead; so the answer never claims
more than what is stored (contract.md 5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from agentctl import errors
from agentctl.records.runs import CancelOutcome
from agentctl.records.times import now
from agentctl.runs.changes import DatabaseChanges
from agentctl.runs.engine import Engine
from agentctl.runs.finish import build_unfinished_record
from agentctl.runs.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.recovery import recover_runs
from agentctl.runs.states import cancelled, is_final
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.repositories import runs
from agentctl.store.repositories.runs import RunRow, RunState

__all__ = ["CancelResult", "Canceller"]

T = TypeVar("T")

OWNER_CHECK_SECONDS = 0.5
"""How often the owner of a run is looked after while its end is awaited."""


@dataclass(frozen=True, slots=True)
class CancelResult:
    """What a cancel did, and the state that is stored."""

    outcome: CancelOutcome
    state: RunState


class Canceller:
    """Asks runs to stop, whichever process works on them.

    Args:
        engine: what this process works on.
        observer: tells whether the owner of another run is alive.
        changes: tells when another process has written.
    """

    def __init__(self, engine: Engine, observer: WorkerMonitor, changes: DatabaseChanges) -> None:
        self._engine = engine
        self._observer = observer
        self._changes = changes

    async def cancel(
        self,
        database: Database,
        run_id: str,
        *,
        actor: str,
        reason: str | None,
        wait: float,
        note: Callable[[], Work[None]] | None = None,
    ) -> CancelResult:
        """Ask a run to stop, and wait for up to `wait` seconds for its end.

        `note` makes what is to be written in the transaction of the request.

        Raises:
            NotFound: there is no such run; nothing is stored then.
        """
        before, state = await database.write(
            _with_extra_write(_request_cancel(run_id, actor, reason), note)
        )
        if is_final(before.status):
            return CancelResult("already_final", before)
        live = self._engine.live(run_id)
        if live is not None:
            live.stop(cancelled(state.cancel_requested_by or actor, state.cancel_reason))
            await asyncio.wait([live.ended], timeout=wait)
            state = await _read_state(database, state)
        elif not is_final(state.status):
            state = await self._wait_for_other_worker(database, state, wait)
        return CancelResult(_outcome(state), state)

    async def _wait_for_other_worker(
        self, database: Database, state: RunState, wait: float
    ) -> RunState:
        """Wait for the end of a run that another process works on, or is dead in the middle of."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        look_after = loop.time()
        changes = self._changes.look(database)
        while True:
            if loop.time() >= look_after:
                await self._recover_if_lost(database, state)
                look_after = loop.time() + OWNER_CHECK_SECONDS
            state = await _read_state(database, state)
            left = deadline - loop.time()
            if is_final(state.status) or left <= 0:
                return state
            await changes.changed(min(left, OWNER_CHECK_SECONDS))

    async def _recover_if_lost(self, database: Database, state: RunState) -> None:
        death = await self._observer.dead(state.owner)
        if death is not None:
            await recover_runs(database, state.owner, silent=death is WorkerDeath.NO_HEARTBEAT)


@unit
def _with_extra_write(work: Work[T], note: Callable[[], Work[None]] | None) -> Steps[T]:
    result = yield from work
    if note is not None:
        yield from note()
    return result


@unit
def _request_cancel(
    run_id: str, actor: str, reason: str | None
) -> Steps[tuple[RunState, RunState]]:
    before = yield from runs.get_state(run_id)
    if before is None:
        raise errors.NotFound("Run not found")
    if is_final(before.status):
        return before, before
    stopped = yield from runs.request_cancel(run_id, now(), actor, reason)
    if stopped is not None and is_final(stopped.status):
        yield from _store_question(stopped)
    after = yield from runs.get_state(run_id)
    return before, after if after is not None else before


@unit
def _store_question(run: RunRow) -> Steps[None]:
    """A run that never starts leaves what it was asked."""
    left = build_unfinished_record(run, "")
    yield from runs.store_question(run.run_id, left.history, left.messages)


async def _read_state(database: Database, known: RunState) -> RunState:
    state = await database.read(runs.get_state(known.run_id))
    return state if state is not None else known


def _outcome(state: RunState) -> CancelOutcome:
    if state.status == "CANCELLED":
        return "stopped"
    return "already_final" if is_final(state.status) else "requested"
