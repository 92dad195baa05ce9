"""Detection of dead workers on other machines by short-lived commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from agentctl.config import settings
from agentctl.records.times import now
from agentctl.runs.desk.decisions import expire_approvals
from agentctl.runs.engine.claims import LegClaims
from agentctl.runs.jobs.cleanup import Ages, delete_expired
from agentctl.runs.states import RunCounters
from agentctl.runs.workers.liveness import DEAD_AFTER_SECONDS, WorkerDeath, WorkerMonitor
from agentctl.store.database import Sql
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals, audit, runs, sessions, workers
from agentctl.store.repositories.audit import AuditRow
from agentctl.store.repositories.workers import WorkerRow
from tests.kit.command import shift_clock
from tests.kit.postgres import postgres_schemas
from tests.kit.rows import a_run, a_session, an_approval

MINUTE = 60_000_000
"""Microseconds."""

STATUSES = Sql(
    "SELECT run_id || ' ' || status FROM runs UNION SELECT status FROM approvals ORDER BY 1"
).column()

FAR = WorkerRow("far", "far", "boot/1", 1, 1, beat=1, started_at=1)


@pytest.fixture
def configured(postgres_url: str) -> Iterator[settings.Settings]:
    with postgres_schemas(postgres_url) as places:
        search_path = places["main"].partition('search_path = "')[2].rstrip('"')
        entry = settings.Database("main", postgres_url, search_path=search_path)
        yield settings.Settings(databases=(entry,))


async def test_command_compares_heartbeats_with_the_database_clock(
    configured: settings.Settings,
) -> None:
    databases = Databases(configured, create=True)
    try:
        system = databases.system
        await system.write(workers.register(FAR))
        await system.write(workers.register(replace(FAR, worker_id="old")))
        monitor = WorkerMonitor(databases, dead_after_seconds=60)
        for name in ("far", "old"):
            await system.write(workers.record_heartbeat(name, 0))
        assert await monitor.check_all() == {"far": None, "old": None}
        for statement in (
            "ALTER TABLE workers DISABLE TRIGGER workers_beat",
            "UPDATE workers SET beat = beat - 61000000 WHERE worker_id = 'old'",
            "ALTER TABLE workers ENABLE TRIGGER workers_beat",
        ):
            await system.write(Sql(statement).execute())
        assert await monitor.check_all() == {"far": None, "old": WorkerDeath.NO_HEARTBEAT}
        assert await monitor.check_owner("old") is WorkerDeath.NO_HEARTBEAT
        long_lived = WorkerMonitor(databases, dead_after_seconds=DEAD_AFTER_SECONDS)
        long_lived.is_long_lived = True
        assert await long_lived.check_all() == {"far": None, "old": None}
    finally:
        await databases.close()


async def test_wrong_clock_of_one_server_deletes_no_shared_rows(
    configured: settings.Settings,
) -> None:
    """R49: the clock of PostgreSQL counts as well."""
    databases = Databases(configured, create=True)
    try:
        system = databases.system
        entry = AuditRow(now(), "me", "http", "create_session", None, "allowed", None, None, None)
        await system.write(audit.append_entry(entry))
        with shift_clock(400 * 86_400):
            await delete_expired(databases, ages=Ages(365))
        assert await system.read(audit.get_newest_time()) == entry.at
    finally:
        await databases.close()


async def test_server_with_a_fast_clock_ends_nothing_too_early(
    configured: settings.Settings,
) -> None:
    """The deadlines of approvals and of the queue count on the clock of PostgreSQL as well."""
    databases = Databases(configured, create=True)
    unused: Any = None
    halts = SimpleNamespace(learn=AsyncMock())
    gate = SimpleNamespace(has_held=lambda state, ended_halts: False, halts=halts)
    host: Any = SimpleNamespace(counters=RunCounters(), services=SimpleNamespace(gate=gate))
    claims = LegClaims(host, databases, unused, unused, unused)
    try:
        system = databases.system
        await system.write(sessions.create(a_session()))
        await system.write(runs.create(a_run("asks", created_at=now(), owner="w1")))
        await system.write(runs.create(a_run("waits", created_at=now())._replace(queue_turn=1)))
        await system.write(
            approvals.create([an_approval("asks", created_at=now(), expires_at=now() + MINUTE)])
        )
        with shift_clock(5 * 60):
            await expire_approvals(system)
            await claims.end_overdue(system)
        assert await system.read(STATUSES) == ["asks PENDING", "pending", "waits PENDING"]
        await system.write(Sql("UPDATE approvals SET expires_at = 1").execute())
        await system.write(Sql("UPDATE runs SET queued_at = 1 WHERE run_id = 'waits'").execute())
        with shift_clock(5 * 60):
            await expire_approvals(system)
            await claims.end_overdue(system)
        assert await system.read(STATUSES) == ["asks PENDING", "expired", "waits ERROR"]
    finally:
        await databases.close()
