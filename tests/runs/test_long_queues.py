"""Long queues on three servers with one PostgreSQL: order, fairness and speed.

AGENTCTL_TEST_LONG=1 has the numbers of docs/internals/measurements.md; `-s` shows the figures.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest

from agentctl.config.settings import Settings
from agentctl.runs.desk import turns
from agentctl.runs.life import legs
from agentctl.service.service import Service
from agentctl.store.database import Database, Sql
from agentctl.store.repositories import queue
from tests.kit.conditions import wait_until
from tests.runs.components import LONG
from tests.runs.test_queue import Worker, add_agents, postgres_settings, serve, start, worker

__all__ = ["postgres_settings", "worker"]


ONE_SESSION = 1_000 if LONG else 30
SESSIONS, RUNS_OF_EACH = (1_000, 10) if LONG else (12, 4)
SLOTS = 20 if LONG else 2


@dataclass
class Seen:
    """A run that has ended."""

    session_id: str
    seq: int
    status: str
    owner: str
    started_at: int
    finished_at: int


_RUNS = Sql(
    "SELECT session_id, seq, status, owner, started_at, finished_at FROM runs"
    " WHERE finished_at IS NOT NULL"
)
_ENDED = Sql("SELECT count(*) FROM runs WHERE finished_at IS NOT NULL")


async def fill(services: Sequence[Service], places: Sequence[tuple[str, str]]) -> None:
    """Start runs on all servers in turn, at most 20 at once."""
    gate = asyncio.Semaphore(20)

    async def add(number: int, session_id: str, message: str) -> None:
        async with gate:
            await start(services[number % 3], "lined", message, session_id)

    await asyncio.gather(*(add(n, *place) for n, place in enumerate(places)))


async def has_grown(count: Callable[[], Awaitable[int]], known: int) -> int | None:
    """Return a count that is larger than the known one, or None."""
    found = await count()
    return found if found > known else None


async def drain(database: Database, total: int, worker: Worker) -> float:
    began = time.monotonic()
    worker.held.clear()

    async def count_ended() -> int:
        return int(await database.read(_ENDED.value()) or 0)

    ended = 0
    while ended < total:
        # The long form has 10,000 runs: the time is for the next end, not for all of them.
        ended = await wait_until(partial(has_grown, count_ended, ended))
    return time.monotonic() - began


async def check_order(database: Database) -> list[Seen]:
    rows = await database.read(_RUNS.rows(Seen), size="large")
    sessions: defaultdict[str, list[Seen]] = defaultdict(list)
    for row in rows:
        assert row.status == "COMPLETED"
        sessions[row.session_id].append(row)
    for runs in sessions.values():
        runs.sort(key=lambda run: run.seq)
        for earlier, later in pairwise(runs):
            assert later.started_at >= earlier.finished_at, (earlier, later)
    return rows


async def measure_claim(database: Database) -> float:
    """Return the milliseconds of a look for the next leg and a claim that another server has."""
    began = time.monotonic()
    for _ in range(50):
        (leg,) = await database.read(queue.list_next_legs(1))
        await database.read(legs.run_reads.get_state(leg.state.run_id))
    return (time.monotonic() - began) * 20


async def test_a_long_queue_of_one_session_keeps_its_order(
    postgres_settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.held = {"x"}
    monkeypatch.setattr(turns, "MAXIMUM_IN_SESSION", ONE_SESSION)
    async with serve(add_agents(postgres_settings), 3) as services:
        for service in services:
            await service.prepare()
        await fill(services, [("s", "x")] * ONE_SESSION)
        database = services[0].hosting.databases.system
        seconds = await drain(database, ONE_SESSION, worker)
        rows = await check_order(database)
        assert worker.most == {"s": 1}
    print(f"one session: {ONE_SESSION} runs in {seconds:.1f} s, {ONE_SESSION / seconds:.0f}/s")
    print("by server:", sorted(Counter(row.owner for row in rows).values()))


async def test_no_session_waits_for_the_queue_of_another_one(
    postgres_settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.held = {"x"}
    names = [f"s{number}" for number in range(SESSIONS)]
    total = SESSIONS * RUNS_OF_EACH
    monkeypatch.setattr(turns, "MAXIMUM_QUEUED", total)
    async with serve(add_agents(postgres_settings, concurrent_runs=SLOTS), 3) as services:
        for service in services:
            await service.prepare()
        database = services[0].hosting.databases.system
        # All runs of a session first: a queue without turns would serve them in this order.
        await fill(services, [(name, "x") for name in names for _ in range(RUNS_OF_EACH)])
        waiting = await database.read(queue.count(total))
        took = await measure_claim(database)
        seconds = await drain(database, total, worker)
        rows = await check_order(database)
        owners = Counter(row.owner for row in rows)
        assert len(owners) == 3 or not LONG
    rows.sort(key=lambda row: row.started_at)
    begun = Counter(row.session_id for row in rows[: total // 2])
    most = max(begun.values())
    fewest = min(begun[name] for name in names)
    assert most - fewest <= 2, begun
    print(f"{total} runs of {SESSIONS} sessions in {seconds:.1f} s, {total / seconds:.0f}/s")
    print(f"half-way: {fewest} to {most} of each session; by server: {sorted(owners.values())}")
    print(f"with {waiting} in the queue the next leg is found in {took:.2f} ms")
