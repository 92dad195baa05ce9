"""Retention by the server, on both engines: idle sessions and decided approvals are deleted."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl.config import load_settings, settings
from agentctl.config.retention import Retention
from agentctl.interface.requests.administration import AuditFilter
from agentctl.records.approvals import ApprovalRow
from agentctl.records.sessions import hash_ids
from agentctl.records.times import DAY, now
from agentctl.runs.jobs.cleanup import UNIT_RUNS, UNIT_SESSIONS, Ages, delete_expired
from agentctl.store.database import Database, Sql, Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals, audit, retention, runs, sessions
from agentctl.store.repositories.audit import AuditRow
from tests.kit.conditions import wait_until
from tests.kit.postgres import postgres_schemas
from tests.kit.process import serve_config
from tests.kit.rows import a_run, a_session, a_whole_run, an_approval, an_end
from tests.runs.quick_jobs import open_service, start_jobs

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

AGES = Ages(
    table=Retention(idle_days=10, approval_days=5),
    components={("agent", "short"): 2, ("agent", "long"): 100},
)

LIST = Sql("SELECT session_id FROM sessions ORDER BY session_id")


@pytest.fixture(params=["sqlite", "postgres"])
def configured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[settings.Settings]:
    if request.param == "sqlite":
        entries = [
            settings.Database(name, f"sqlite:///{tmp_path}/{name}.db")
            for name in ("main", "second")
        ]
        yield settings.Settings(databases=tuple(entries))
        return
    url = request.getfixturevalue("postgres_url")
    with postgres_schemas(url) as places:
        paths = {name: line.partition('search_path = "')[2][:-1] for name, line in places.items()}
        entries = [settings.Database(name, url, search_path=path) for name, path in paths.items()]
        yield settings.Settings(databases=tuple(entries))


@asynccontextmanager
async def opened(configured: settings.Settings) -> AsyncIterator[Databases]:
    databases = Databases(configured, create=True)
    try:
        await databases.open_all()
        yield databases
    finally:
        await databases.close()


@unit
def create(name: str, days: float, component_id: str | None, kind: str = "agent") -> Steps[None]:
    """Create a session with an ended run that was used some days ago."""
    at = now() - int(days * DAY)
    row = a_session(name, session_type=kind, component_id=component_id, now=at)
    yield from sessions.create(row)
    end = an_end(f"run-{name}", finished_at=at + 9, stopped_at=at + 9)
    yield from a_whole_run(a_run(f"run-{name}", name, created_at=at), end)


@unit
def create_all() -> Steps[None]:
    yield from create("kept-young", 9, "echo")
    yield from create("kept-short", 1, "short")
    yield from create("kept-long", 50, "long")
    yield from create("kept-team", 3, "short", "team")
    yield from create("kept-held", 99, "echo")
    yield from retention.set_hold("kept-held", "{}")
    yield from create("kept-live", 99, None)
    yield from runs.create(a_run("live", "kept-live", created_at=now() - 99 * DAY))
    yield from create("old-echo", 11, "echo")
    yield from create("old-short", 3, "short")
    yield from create("old-long", 101, "long")
    yield from create("old-team", 11, "short", "team")
    yield from create("old-none", 11, None)
    yield from create("old-deleted-agent", 11, "deleted")


async def read_entries(databases: Databases) -> list[AuditRow]:
    entries = await databases.system.read(audit.list_page(AuditFilter(limit=100)))
    return entries.rows


async def test_server_deletes_idle_sessions_in_the_background(
    configured: settings.Settings,
) -> None:
    agents = [
        settings.Agent(name, retention_days=days) for (_, name), days in AGES.components.items()
    ]
    configured = replace(configured, retention=AGES.table, agents=tuple(agents))
    async with open_service(configured) as service:
        databases = service.hosting.databases
        counters = service.hosting.engine.counters
        for name in ("main", "second"):
            await databases[name].write(create_all())
        entry = audit.AuditRow(now(), "me", "http", "x", None, "allowed", None, None, None)
        await databases.system.write(audit.append_entry(entry))  # the clock is compared with it
        start_jobs(service, 0.01)
        await wait_until(lambda: counters.deleted["sessions"] >= 12)
        await service.hosting.jobs.close()
        for name in ("main", "second"):
            left = await databases[name].read(LIST.column())
            assert [session_id for session_id in left if session_id.startswith("old")] == []
            assert len(left) == 6
        entries = [row for row in await read_entries(databases) if row.operation != "x"]
        assert {(row.operation, row.principal) for row in entries} == {
            ("expire_sessions", "system:cleanup")
        }
        assert sum(row.count for row in entries) == 12
        resource = f"sessions:{hash_ids(['old-echo'])}"
        assert {resource, f"{resource},database:second"} <= {row.resource for row in entries}


async def test_units_are_bounded_and_nothing_is_deleted_without_ages(
    configured: settings.Settings,
) -> None:
    many = [f"s{number:03}" for number in range(2 * UNIT_SESSIONS + 1)]
    async with opened(configured) as databases:
        main = databases.system

        @unit
        def create_many() -> Steps[None]:
            for name in many:
                yield from sessions.create(a_session(name, now=now() - 11 * DAY))
            for name in ("large-1", "large-2"):
                row = a_session(name, now=now() - 12 * DAY)
                yield from sessions.create(replace(row, run_count=UNIT_RUNS + 1))

        await main.write(create_many())
        await delete_expired(databases)
        assert len(await main.read(LIST.column())) == len(many) + 2
        deleted = Counter[str]()
        await delete_expired(databases, ages=AGES, deleted=deleted)
        assert deleted["sessions"] == len(many) + 2
        assert await main.read(LIST.column()) == []
        counts = [row.count for row in reversed(await read_entries(databases))]
        assert counts == [1, 1, UNIT_SESSIONS, UNIT_SESSIONS, 1]


def a_decided_approval(name: str, run_id: str, session_id: str, **given: Any) -> ApprovalRow:
    """Return an approval of a call that was made six days ago."""
    values: dict[str, Any] = {
        "status": "approved",
        "execution": "done",
        "created_at": now() - 20 * DAY,
        "decided_at": now() - 6 * DAY,
    } | given
    return an_approval(run_id, approval_id=name, session_id=session_id, **values)


async def test_decided_approvals_are_deleted_at_their_age(configured: settings.Settings) -> None:
    @unit
    def create_approvals() -> Steps[None]:
        yield from create("s1", 1, "echo")
        yield from create("held", 1, "echo")
        yield from retention.set_hold("held", json.dumps({}))
        yield from runs.create(a_run("live", "s1"))
        rows = [
            a_decided_approval("old-approved", "run-s1", "s1"),
            a_decided_approval("old-rejected", "run-s1", "s1", status="rejected", execution=None),
            a_decided_approval("kept-young", "run-s1", "s1", decided_at=now() - 4 * DAY),
            a_decided_approval("kept-pending", "run-s1", "s1", status="pending", decided_at=None),
            a_decided_approval("kept-unknown", "run-s1", "s1", execution="unknown"),
            a_decided_approval("kept-of-live", "live", "s1"),
            a_decided_approval("kept-of-held", "run-held", "held"),
        ]
        yield from approvals.create(rows)

    async with opened(configured) as databases:
        second: Database = databases["second"]
        await second.write(create_approvals())
        deleted = Counter[str]()
        await delete_expired(databases, ages=AGES, deleted=deleted)
        assert deleted["approvals"] == 2
        ids = await second.read(Sql("SELECT approval_id FROM approvals").column())
        assert len(ids) == 5
        assert not any(name.startswith("old") for name in ids)
        (entry,) = await read_entries(databases)
        digest = hash_ids(["old-approved", "old-rejected"])
        assert (entry.operation, entry.count) == ("expire_approvals", 2)
        assert entry.resource == f"approvals:{digest},database:second"


CONFIG = """
[authorization]
enabled = false
[retention]
idle_days = 10
[[databases]]
id = "main"
url = "sqlite:///main.db"
[[models]]
id = "echo"
provider = "demo"
model = "echo"
[[agents]]
id = "echo"
model = "echo"
[[agents]]
id = "short"
model = "echo"
retention_days = 2
[[teams]]
id = "crew"
model = "echo"
members = ["echo"]
retention_days = 30
"""


def test_ages_are_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "agentctl.toml").write_text(CONFIG)
    ages = Ages.from_settings(load_settings(tmp_path / "agentctl.toml", {}))
    assert ages == Ages(365, Retention(idle_days=10), {("agent", "short"): 2, ("team", "crew"): 30})


@pytest.mark.skipif(not LONG, reason="the long mode: AGENTCTL_TEST_LONG=1")
async def test_server_process_deletes_idle_sessions(tmp_path: Path) -> None:
    path = tmp_path / "agentctl.toml"
    path.write_text(CONFIG)
    async with opened(load_settings(path, {})) as databases:
        main = databases.system
        await main.write(create_all())
        entry = audit.AuditRow(now(), "me", "http", "x", None, "allowed", None, None, None)
        await main.write(audit.append_entry(entry))
        with serve_config(path):
            deadline = asyncio.get_running_loop().time() + 120
            while any(each.startswith("old") for each in await main.read(LIST.column())):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.5)
        assert "kept-held" in await main.read(LIST.column())
        entries = await read_entries(databases)
        assert sum(row.count for row in entries if row.operation == "expire_sessions") >= 5
