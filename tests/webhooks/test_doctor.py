"""A report of `agentctl doctor` on the events that an endpoint did not accept."""

from __future__ import annotations

from pathlib import Path

from agentctl.admin.doctor.runs import check_webhooks
from agentctl.config.settings import Database, Settings
from agentctl.records.times import now
from agentctl.store.databases import Databases
from agentctl.store.repositories import webhooks
from agentctl.store.repositories.webhooks import NewDelivery


async def test_events_of_all_databases_are_counted_together(tmp_path: Path) -> None:
    entries = [Database(name, f"sqlite:///{tmp_path / name}.db") for name in ("main", "second")]
    settings = Settings(databases=tuple(entries))
    databases = Databases(settings, create=True)
    await databases.open_all()
    for name, database in databases.items():
        delivery = NewDelivery(name, name, "ops", "run.failed", "run", "{}", now())
        await database.write(webhooks.create(delivery))
        await database.write(webhooks.hold_waiting("the server responds with 500"))
    await databases.close()

    findings = await check_webhooks(settings)

    assert [each.what for each in findings] == ["ops did not accept 2 events"]
