"""The table of jobs, the page about it, and what doctor finds of their work."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentctl import errors
from agentctl.admin.doctor.runs import check_jobs
from agentctl.auth.keys.signing import generate_key
from agentctl.config.settings import Audit, Database, Metrics, Settings
from agentctl.config.webhooks import Webhook
from agentctl.records.times import now
from agentctl.runs.workers import worker as lease_module
from agentctl.service.jobs import list_lanes
from agentctl.service.service import Service
from agentctl.store.database import Sql
from agentctl.store.repositories import approvals, audit, runs, sessions, workers
from tests.kit.conditions import wait_until
from tests.kit.documents import ROOT
from tests.kit.rows import a_run, a_session
from tests.runs.quick_jobs import open_service, start_jobs
from tests.runs.test_cleanup import create_ended_run
from tests.runs.test_clock_guard import an_entry
from tests.runs.test_database_clock import MINUTE, an_approval

ROW = re.compile(r"^\| `(\w+)` \| ([\d.]+) s \| (each|one) \|", re.MULTILINE)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """All that adds a job to the table."""
    (tmp_path / "audit.pem").write_bytes(generate_key("EdDSA"))
    (tmp_path / "audit.pem").chmod(0o600)
    return Settings(
        databases=(Database("main", f"sqlite:///{tmp_path}/main.db"),),
        metrics=Metrics(listen="127.0.0.1:0"),
        audit=Audit(key_file=tmp_path / "audit.pem"),
        webhooks=(Webhook("all", "https://hooks.example.org", ("run.completed",)),),
    )


async def test_page_lists_the_jobs_with_their_intervals(settings: Settings) -> None:
    async with open_service(settings) as service:
        lanes = list_lanes(service.hosting, service._worker)
    assert ROW.findall((ROOT / "docs/observability.md").read_text()) == [
        (job.name, f"{job.seconds or lane.seconds:g}", "one" if job.leased else "each")
        for lane in lanes
        for job in lane.jobs
    ]
    assert all(job.run is not None for lane in lanes for job in lane.jobs)


async def test_every_job_of_a_server_completes(settings: Settings) -> None:
    async with open_service(settings) as service:
        times = service.hosting.jobs.times
        start_jobs(service, 0.01)
        assert len(times) == 2 * 18
        await wait_until(lambda: all(times[name, "completed"].count for name, _ in times))
        assert [name for (name, end), each in times.items() if end == "failed" and each.count] == []


async def test_server_without_features_has_fewer_jobs(settings: Settings) -> None:
    async with open_service(Settings(databases=settings.databases)) as service:
        start_jobs(service, 0.01)
        absent = {"audit_heads", "counts", "deliveries", "delivery_counts"}
        assert absent.isdisjoint(name for name, _ in service.hosting.jobs.times)
        assert len(service.hosting.jobs.times) == 2 * 14


async def add_approval(service: Service) -> None:
    system = service.hosting.databases.system
    await system.write(sessions.create(a_session()))
    await system.write(runs.create(a_run("asks", created_at=now(), owner="w1")))
    expired = an_approval("asks", expires_at=now() - 6 * MINUTE)
    await system.write(approvals.create([expired]))


async def add_queued_run(service: Service) -> None:
    system = service.hosting.databases.system
    await system.write(sessions.create(a_session()))
    await system.write(runs.create(a_run("waits", created_at=now())._replace(queue_turn=1)))
    await system.write(Sql("UPDATE runs SET queued_at = 1").execute())


async def add_events(service: Service) -> None:
    await create_ended_run(service.hosting.databases, "main", "0-old", 96)


@pytest.mark.parametrize(
    ("add", "late"),
    [
        (add_approval, "approvals have expired"),
        (add_queued_run, "runs have waited in the queue for too long"),
        (add_events, "events are kept for too long"),
    ],
)
async def test_doctor_finds_late_work(
    settings: Settings, add: Callable[[Service], Awaitable[None]], late: str
) -> None:
    async with open_service(Settings(databases=settings.databases)) as service:
        finding = await check_jobs(service.hosting)
        assert finding.what == "no server sweeps now, and no work is late"
        await add(service)
        finding = await check_jobs(service.hosting)
        assert (finding.verdict, finding.what) == ("note", f"no server sweeps now, but {late}")
        assert await service.hosting.jobs.lease.acquire()
        finding = await check_jobs(service.hosting)
        what = f"worker {service._worker.id} sweeps, but {late}"
        assert (finding.verdict, finding.what) == ("wrong", what)
        # The clock is compared with it.
        await service.hosting.databases.system.write(audit.append_entry(an_entry(now())))
        start_jobs(service, 0.01)
        await wait_until(lambda: is_in_time(service))


async def is_in_time(service: Service) -> bool:
    return (await check_jobs(service.hosting)).verdict == "ok"


async def test_long_sweep_keeps_the_lease_until_another_process_has_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "EXTEND_SECONDS", 0.01)
    async with open_service(settings) as service:
        lease = service.hosting.jobs.lease
        system = service.hosting.databases.system
        assert await lease.acquire()

        async def is_valid() -> bool:
            return await system.read(workers.get_sweeper(now())) == service._worker.id

        async with lease.extended():
            await system.write(Sql("UPDATE leases SET expires_at = 1").execute())
            await wait_until(is_valid)
            await system.write(workers.acquire_sweep("other", now(), exited=service._worker.id))
            await wait_until(lambda: not lease.is_held)


async def test_unanswered_request_changes_nothing_of_the_lease(settings: Settings) -> None:
    async with open_service(settings) as service:
        assert await service.hosting.jobs.lease.acquire()
        await service.hosting.databases.system.close()
        with pytest.raises(errors.Unavailable):
            await service.hosting.jobs.lease.acquire()
        assert service.hosting.jobs.lease.is_held
