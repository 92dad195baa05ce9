"""Cancelling: the request is recorded first, then the owner hears of it, then the end is awaited.

"Asked to stop" and "has stopped" are two facts. The second is read back from the row, which only
the owner of the run writes, so the answer never claims more than what is stored (contract.md 5).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentctl import errors
from agentctl.records.runs import CancelOutcome
from agentctl.records.times import now
from agentctl.runs.engine import Engine
from agentctl.runs.states import cancelled, is_final
from agentctl.store import runs
from agentctl.store.database import Database, Work
from agentctl.store.runs import RunState

__all__ = ["Cancellation", "cancel"]

POLL_SECONDS = 0.025
"""How often the row of another process's run is looked at while waiting for its end."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a cancel did, and the state that is stored."""

    outcome: CancelOutcome
    state: RunState


async def cancel(
    engine: Engine, database: Database, run_id: str, *, actor: str, reason: str | None, wait: float
) -> Cancellation:
    """Ask a run to stop, and wait for up to `wait` seconds for its end.

    Raises:
        NotFound: there is no such run; nothing is stored then.
    """
    before, state = await database.write(_request(run_id, actor, reason))
    if is_final(before.status):
        return Cancellation("already_final", before)
    live = engine.live(run_id)
    if live is not None:
        live.stop(cancelled(state.cancel_requested_by or actor, state.cancel_reason))
        await asyncio.wait([live.ended], timeout=wait)
        state = await _state(database, run_id, state)
    elif not is_final(state.status):
        state = await _await_other(database, state, wait)
    return Cancellation(_outcome(state), state)


def _request(run_id: str, actor: str, reason: str | None) -> Work[tuple[RunState, RunState]]:
    before = yield from runs.state(run_id)
    if before is None:
        raise errors.NotFound("Run not found")
    if is_final(before.status):
        return before, before
    yield from runs.request_cancel(run_id, now(), actor, reason)
    after = yield from runs.state(run_id)
    return before, after if after is not None else before


async def _await_other(database: Database, state: RunState, wait: float) -> RunState:
    deadline = asyncio.get_running_loop().time() + wait
    while not is_final(state.status) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_SECONDS)
        state = await _state(database, state.run_id, state)
    return state


async def _state(database: Database, run_id: str, known: RunState) -> RunState:
    state = await database.read(runs.state(run_id))
    return state if state is not None else known


def _outcome(state: RunState) -> CancelOutcome:
    if state.status == "CANCELLED":
        return "stopped"
    return "already_final" if is_final(state.status) else "requested"
