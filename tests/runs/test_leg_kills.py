"""SIGKILL before and after each write of a leg: an approved call is made at most once.

The ledger of the payments is outside of the database. The stored rows are compared with it after
each kill. A person who knows the ledger answers what happened to a call in doubt; in the end the
payment was made exactly once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentctl.interface.requests import RunRequest
from agentctl.runtime.components import execute
from agentctl.service import jobs
from agentctl.store.database import Database
from agentctl.store.repositories import approvals
from tests.kit.conditions import wait_until
from tests.runs.components import build_settings, collect_garbage
from tests.runs.simulated_processes import Process, create_process_task
from tests.runs.test_legs import Payer, approval_of, database_of, decide

__all__ = ["collect_garbage"]

MOST = 30
"""More writes than any leg has."""


class KilledAt:
    """Kills a process before or after one of the writes of its database.

    Attributes:
        has_begun: True once the process is being killed.
        happened: set when the process is dead.
    """

    def __init__(self, process: Process, number: int, *, after: bool) -> None:
        self.has_begun = False
        self.happened = asyncio.Event()
        self._process = process
        self._left = number
        self._after = after
        self._database: Database = process.service.hosting.databases.system
        self._write = self._database.write
        self._database.write = self._count  # type: ignore[method-assign]

    def disarm(self) -> None:
        self._left = 0

    async def _count(self, work: Any) -> Any:
        self._left -= 1
        is_last = self._left == 0
        if is_last and not self._after:
            await self._kill()
        result = await self._write(work)
        if is_last:
            await self._kill()
        return result

    async def _kill(self) -> None:
        self.has_begun = True
        loop = asyncio.get_running_loop()
        killing = loop.create_task(self._process.kill(), context=contextvars.Context())
        killing.add_done_callback(lambda _: self.happened.set())
        await asyncio.Event().wait()


@pytest.fixture
def payer(monkeypatch: pytest.MonkeyPatch) -> Payer:
    payer = Payer()
    monkeypatch.setattr(execute, "_execute", payer.run)
    monkeypatch.setattr(jobs, "SWEEP_SECONDS", 0.05)
    return payer


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Process]:
    process = Process(build_settings(folder / "main.db"))
    await process.run(process.open())
    try:
        yield process
    finally:
        if process.alive:
            await process.stop()


async def pause_run(process: Process) -> str:
    record = await process.run(
        process.operations.runs.create("agent", "quick", RunRequest(message="pay bob"))
    )
    assert record.value["status"] == "PAUSED"
    return str(record.value["run_id"])


async def settle(process: Process, run_id: str, payer: Payer) -> dict[str, Any]:
    """Answer the questions about a run by what the ledger has, until the run has ended."""
    record: dict[str, Any] = {}

    async def settled() -> bool:
        record.update((await process.operations.runs.get(run_id)).value)
        return record["status"] in ("PAUSED", "COMPLETED", "ERROR", "CANCELLED")

    while True:
        await wait_until(settled)
        if record["status"] != "PAUSED":
            return record
        row = await approval_of(process.service, run_id)
        if row.kind == "outcome":
            first = (await database_of(process.service).read(approvals.list_of_run(run_id)))[0]
            assert first.execution == "unknown"
            if payer.ledger:
                await decide(process.service, run_id, "complete", result="paid")
            else:
                await decide(process.service, run_id, "retry")
        else:
            assert payer.ledger == []
            await decide(process.service, run_id, "approve")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_call_is_made_once_with_a_kill_at_each_write(
    tmp_path: Path, payer: Payer, after: bool
) -> None:
    asyncio.get_running_loop().set_task_factory(create_process_task)
    kills = 0
    for number in range(1, MOST):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        payer.ledger.clear()
        async with running(folder) as first:
            run_id = await pause_run(first)
            killed = await execute_and_kill(first, run_id, number, after=after)
            kills += killed
        assert len(payer.ledger) <= 1
        async with running(folder) as second:
            record = await settle(second, run_id, payer)
            assert record["status"] == "COMPLETED"
            assert len(payer.ledger) == 1
            rows = await database_of(second.service).read(approvals.list_of_run(run_id))
            assert rows[0].execution == "done"
        if not killed:
            break
    assert kills >= 4


async def execute_and_kill(process: Process, run_id: str, number: int, *, after: bool) -> bool:
    """Decide and execute the next leg of a run; return True if a write of it killed the process."""
    kill = KilledAt(process, number, after=after)
    process.spawn(decide_and_continue(process, run_id))

    async def ended() -> bool:
        if kill.has_begun:
            return kill.happened.is_set()
        return await is_completed(process, run_id) and not kill.has_begun

    await wait_until(ended)
    kill.disarm()
    return kill.has_begun


async def decide_and_continue(process: Process, run_id: str) -> None:
    await decide(process.service, run_id, "approve")
    await process.service.hosting.engine.claims.claim(database_of(process.service), run_id)


async def is_completed(process: Process, run_id: str) -> bool:
    return (await process.operations.runs.get(run_id)).value["status"] == "COMPLETED"
