"""`agentctl doctor --runs`: problems, and repairs that report only their own changes."""

from __future__ import annotations

import apsw
import pytest

from agentctl import errors
from agentctl.admin.runs_doctor import find as examination
from agentctl.admin.runs_doctor.find import Problem, RunsDoctor, is_orphaned
from agentctl.admin.runs_doctor.repair import RunRepairs
from agentctl.runs.workers.recovery import recover_runs
from agentctl.service.service import Service
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import integrity, runs, sessions, workers
from agentctl.store.repositories.integrity import StoredMessages
from agentctl.store.repositories.workers import WorkerRow
from tests.kit.deployment import Deployment
from tests.kit.rows import START, a_run, a_session, a_whole_run, an_end
from tests.kit.service import open_service, streamed_run, user

OPEN = '[{"role":"assistant","content":"","tool_calls":[{"id":"c","name":"add","arguments":{}}]}]'


async def find_problems(service: Service, db_id: str | None = None) -> list[Problem]:
    return await RunsDoctor(service.hosting, db_id).find_problems(lambda more: None)


async def repair_all(service: Service, problems: list[Problem]) -> list[tuple[str | None, str]]:
    done = [problem async for problem in RunRepairs(service.hosting).repair(problems)]
    return [(problem.outcome, problem.detail or "") for problem in done]


@unit
def insert_orphaned_run(run_id: str = "r1", session_id: str = "s1") -> Steps[None]:
    """Insert a live run whose worker has no row."""
    yield from sessions.create(a_session(session_id))
    yield from runs.create(a_run(run_id, session_id, owner="w1"))
    yield from runs.claim(run_id, 1, "w1", START)


@unit
def talked(messages: str) -> Steps[None]:
    yield from sessions.create(a_session())
    yield from a_whole_run(a_run(), an_end(messages=messages))


def execute_sql(deployment: Deployment, sql: str) -> None:
    """Change the database with foreign keys off."""
    connection = apsw.Connection(str(deployment.folder / "main.db"))
    connection.set_busy_timeout(5_000)
    connection.execute(sql).fetchall()
    connection.close()


async def test_live_run_has_no_problem(deployment: Deployment) -> None:
    async with (
        open_service(deployment) as service,
        streamed_run(user(service), "agent", "hang", message="x"),
    ):
        assert await find_problems(service) == []


async def test_scan_reads_pages_and_reports_progress(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "PAGE_SIZE", 2)
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(sessions.create(a_session()))
        for number in range(5):
            await main.write(a_whole_run(a_run(f"r{number}"), an_end(f"r{number}", messages=OPEN)))
        told: list[int] = []
        found = await RunsDoctor(service.hosting, None).find_problems(told.append)
        assert [problem.run_id for problem in found] == ["r0", "r1", "r2", "r3", "r4"]
        assert told == [2, 2, 1]
        assert await RunsDoctor(service.hosting, None).estimate_count() == 5


async def test_every_database_uses_the_same_workers(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await service.hosting.databases["second"].write(insert_orphaned_run())
        assert await find_problems(service, "main") == []
        (problem,) = await find_problems(service)
        assert (problem.kind, problem.db_id, problem.worker_id) == ("lost", "second", "w1")
        assert await repair_all(service, [problem]) == [("repaired", "ended as ERROR, WORKER_LOST")]
        with pytest.raises(errors.NotFound):
            RunsDoctor(service.hosting, "nowhere")


async def test_run_that_ended_is_not_repaired(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(insert_orphaned_run())
        found = await find_problems(service)
        await main.write(runs.finish(an_end()))
        assert await repair_all(service, found) == [
            ("gone", "it ended as COMPLETED before the repair")
        ]


async def test_run_recovered_by_another_process_is_not_repaired(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(insert_orphaned_run())
        found = await find_problems(service)
        assert await recover_runs(main, "w1") == ["r1"]
        assert await repair_all(service, found) == [
            ("gone", "it ended as ERROR, WORKER_LOST before the repair")
        ]


async def test_deleted_run_is_not_repaired(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(insert_orphaned_run())
        found = await find_problems(service)
        await main.write(sessions.delete("s1"))
        assert await repair_all(service, found) == [("gone", "it was deleted in the meantime")]


async def test_runs_that_end_with_the_known_ones_are_reported(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(insert_orphaned_run())
        found = await find_problems(service)
        await main.write(insert_orphaned_run("r2", "s2"))
        assert [outcome for outcome, _ in await repair_all(service, found)] == ["repaired"] * 2


async def test_live_worker_keeps_its_runs(deployment: Deployment) -> None:
    async with (
        open_service(deployment) as service,
        streamed_run(user(service), "agent", "hang", message="x") as (run, _),
    ):
        owner = service.hosting.engine.worker_id
        problem = Problem("lost", "main", run["run_id"], run["session_id"], owner, "", "end it")
        assert await repair_all(service, [problem]) == [
            ("left", "it is RUNNING: its worker is alive")
        ]
        dead = Problem("dead_worker", "main", None, None, owner, "", "remove its row")
        assert await repair_all(service, [dead]) == [("left", "the worker is alive")]


async def test_closed_calls_are_not_repaired(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(talked(OPEN))
        found = await find_problems(service)
        assert [problem.kind for problem in found] == ["open_calls"]
        await main.write(integrity.replace_messages("r1", OPEN, StoredMessages("[]", "[]")))
        assert await repair_all(service, found) == [("gone", "every call has a result")]
        await main.write(integrity.replace_messages("r1", "[]", StoredMessages("{", "[]")))
        assert await repair_all(service, found) == [("left", "its messages cannot be parsed")]
        await main.write(sessions.delete("s1"))
        assert await repair_all(service, found) == [("gone", "the run was deleted in the meantime")]


async def test_restored_session_keeps_its_runs(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(talked("[]"))
        execute_sql(deployment, "DELETE FROM sessions")
        found = await find_problems(service)
        assert [problem.kind for problem in found] == ["no_session"]
        await main.write(sessions.create(a_session()))
        assert await repair_all(service, found) == [("gone", "it has a session now")]
        execute_sql(deployment, "DELETE FROM sessions")
        execute_sql(deployment, "DELETE FROM runs")
        assert await repair_all(service, found) == [("gone", "it was deleted in the meantime")]


async def test_run_without_a_session_of_a_live_worker_is_left(deployment: Deployment) -> None:
    async with (
        open_service(deployment) as service,
        streamed_run(user(service), "agent", "hang", message="x"),
    ):
        execute_sql(deployment, "DELETE FROM sessions")
        (problem,) = await find_problems(service)
        assert (problem.kind, problem.remedy) == ("no_session", None)
        assert [outcome for outcome, _ in await repair_all(service, [problem])] == ["left"]


async def test_dead_worker_is_removed_last_and_once(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        databases = service.hosting.databases
        gone = WorkerRow("w1", "nowhere", "", 1, 1, START, START)
        folder = databases.system.lock_folder
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "w1.lock").touch(0o600)
        await databases.system.write(workers.register(gone))
        await databases["second"].write(insert_orphaned_run())
        found = await find_problems(service)
        assert [problem.kind for problem in found] == ["lost", "dead_worker"]
        assert await repair_all(service, found[1:]) == [
            ("left", "runs of database second still name it")
        ]
        assert await repair_all(service, found) == [
            ("repaired", "ended as ERROR, WORKER_LOST"),
            ("repaired", "removed its row"),
        ]
        assert not (folder / "w1.lock").exists()
        assert await repair_all(service, found[1:]) == [
            ("gone", "its row was removed in the meantime")
        ]


async def test_run_of_a_dead_worker_is_orphaned(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        main = service.hosting.databases["main"]
        await main.write(insert_orphaned_run())
        assert await is_orphaned(service.hosting, "r1", None)
        assert not await is_orphaned(service.hosting, "r1", "second")
        assert not await is_orphaned(service.hosting, "absent", "main")
        await main.write(runs.finish(an_end()))
        assert not await is_orphaned(service.hosting, "r1", "main")
