"""Races of approve, reject, expiry and cancel on two servers: one of them counts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.config.settings import Settings
from agentctl.runs.decisions import write_decisions
from agentctl.runs.sweep import continue_waiting_runs
from agentctl.runtime.components import execute
from agentctl.runtime.pauses import CallOutcome
from agentctl.service.service import Service
from agentctl.store.repositories.approvals import DecisionChange
from tests.loops import wait_until
from tests.postgres import drop_schema
from tests.runs.components import LONG, build_settings
from tests.runs.test_legs import Payer, approval_of, database_of
from tests.service.callers import RunRequest, admin, user

RACES = 10_000 if LONG else 60
AT_ONCE = 20


_run_id: ContextVar[str] = ContextVar("_run_id")


class CountingPayer(Payer):
    """A payer whose ledger has the run of each payment."""

    def __init__(self) -> None:
        super().__init__()
        self.paid: Counter[str] = Counter()

    async def run(self, component: Any, context: Any, catalog: Any) -> None:
        _run_id.set(context.spec.run_id)
        await super().run(component, context, catalog)

    async def pay(self, arguments: Mapping[str, Any]) -> CallOutcome:
        self.paid[_run_id.get()] += 1
        return await super().pay(arguments)


@pytest.fixture
def payer(monkeypatch: pytest.MonkeyPatch) -> CountingPayer:
    payer = CountingPayer()
    monkeypatch.setattr(execute, "_execute", payer.run)
    return payer


async def test_one_decision_of_a_race_counts(tmp_path: Path, payer: CountingPayer) -> None:
    await race_on(build_settings(tmp_path / "main.db"), payer)


@pytest.mark.slow
async def test_one_decision_of_a_race_counts_on_postgresql(
    tmp_path: Path, payer: CountingPayer, postgres_url: str
) -> None:
    schema = f"race_{uuid4().hex}"
    entry = Entry("main", postgres_url, wait_seconds=60, statement_seconds=60, search_path=schema)
    try:
        settings = replace(build_settings(tmp_path / "none.db"), databases=(entry,))
        await race_on(settings, payer)
    finally:
        await drop_schema(entry)


async def race_on(settings: Settings, payer: CountingPayer) -> None:
    ends: Counter[str] = Counter()
    chance = random.Random(7)
    async with (
        Service.open(settings, create=True) as first,
        Service.open(settings, create=True) as second,
    ):
        for _ in range(-(-RACES // AT_ONCE)):
            races = (race((first, second), payer, chance) for _ in range(AT_ONCE))
            ends.update(await asyncio.gather(*races))
    assert sum(ends.values()) >= RACES
    statuses = {"approved", "rejected", "expired", "cancelled"}
    # Which writers win is a matter of time: each of them does in many races only.
    assert set(ends) == statuses if LONG else set(ends) <= statuses


async def race(
    services: tuple[Service, Service], payer: CountingPayer, chance: random.Random
) -> str:
    """Let four writers decide about one approval; return the status that counts."""
    first, second = services
    document = await user(first).create_run("agent", "quick", RunRequest(message="pay bob"))
    run_id = str(document.value["run_id"])
    row = await approval_of(first, run_id)

    async def decide(service: Service, status: str) -> bool:
        change = DecisionChange(status, row.created_at + 1, f"by {status}")
        work = write_decisions(database_of(service).outbox, run_id, [(row.approval_id, change)])
        try:
            await database_of(service).write(work)
        except errors.Conflict:
            return False
        return True

    async def cancel() -> bool:
        canceller = second.hosting.canceller
        await canceller.cancel(
            database_of(second), run_id, actor="by cancel", reason=None, wait=0.0
        )
        return (await approval_of(second, run_id)).status == "cancelled"

    writers: list[Callable[[], Coroutine[Any, Any, bool]]] = [
        lambda: decide(first, "approved"),
        lambda: decide(second, "rejected"),
        lambda: decide(chance.choice(services), "expired"),
        cancel,
    ]
    delays = [chance.random() * 0.01 for _ in writers]

    async def write(delay: float, writer: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        await asyncio.sleep(delay)
        return await writer()

    won = await asyncio.gather(*map(write, delays, writers))
    assert sum(won) == 1
    for service in services:
        await continue_waiting_runs(service.hosting.databases, service.hosting.engine.claims)

    async def is_final() -> bool:
        record = (await admin(first).get_run(run_id)).value
        return record["status"] in ("COMPLETED", "CANCELLED", "ERROR")

    await wait_until(is_final)
    decided = await approval_of(first, run_id)
    status = (await admin(first).get_run(run_id)).value["status"]
    paid = payer.paid[run_id]
    assert paid == 0 or decided.status == "approved"
    if decided.execution == "done":
        assert (decided.status, paid) == ("approved", 1)
    if status == "COMPLETED":
        assert paid == (decided.status == "approved")
    return decided.status
