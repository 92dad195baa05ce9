"""Detection of dead workers on other machines by short-lived commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentctl.config import settings
from agentctl.records.times import now
from agentctl.runs.cleanup import delete_expired
from agentctl.runs.liveness import DEAD_AFTER_SECONDS, WorkerDeath, WorkerMonitor
from agentctl.runs.retention import Ages
from agentctl.store.database import Sql
from agentctl.store.databases import Databases
from agentctl.store.repositories import audit, workers
from agentctl.store.repositories.audit import NewAuditEntry
from agentctl.store.repositories.workers import WorkerRow
from tests.commands import shift_clock
from tests.postgres import postgres_schemas, postgres_url

__all__ = ["postgres_url"]

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
        entry = NewAuditEntry(
            now(), "me", "http", "create_session", None, "allowed", None, None, None
        )
        await system.write(audit.append_entry(entry))
        with shift_clock(400 * 86_400):
            await delete_expired(databases, ages=Ages(365))
        assert await system.read(audit.get_newest_time()) == entry.at
    finally:
        await databases.close()
