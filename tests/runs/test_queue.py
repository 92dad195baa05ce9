"""The queue of a session and of a database, with a scripted component on one or more servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.config.settings import Agent, Limits, Settings, Step, Team, Workflow
from agentctl.config.settings import Database as Entry
from agentctl.interface.requests import CancelRequest, Page, RunFilter, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.runs.desk import turns
from agentctl.runs.engine import claims as run_claims
from agentctl.runs.engine.claims import SPARE_LEGS
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.components import execute
from agentctl.runtime.transcript.events import Content
from agentctl.service.service import Service
from agentctl.store.database import Sql
from agentctl.store.repositories import approvals, integrity, run_reads
from tests.kit.conditions import PATIENCE, wait_for_run, wait_until
from tests.kit.service import admin, user
from tests.runs.components import build_settings


class Worker:
    """A component that answers with its message, once its message may end.

    Attributes:
        begun: the messages in the order of their begin.
        at_work: the number of runs at work, by session; `most` is the highest number of each.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_work: defaultdict[str, int] = defaultdict(int)
        self.most: defaultdict[str, int] = defaultdict(int)
        self.held: set[str] = set()

    async def run(self, component: Any, context: Any, catalog: Any) -> None:
        message = context.spec.input
        session_id = context.spec.session_id
        self.begun.append(message)
        self.at_work[session_id] += 1
        self.most[session_id] = max(self.most[session_id], self.at_work[session_id])
        try:
            while message in self.held:
                await asyncio.sleep(0.002)
        finally:
            self.at_work[session_id] -= 1
        context.transcript.add_user(message)
        context.transcript.add_answer(message)
        context.transcript.add_content(message)
        context.emit(Content(message))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker()
    monkeypatch.setattr(execute, "_execute", worker.run)
    return worker


def add_agents(settings: Settings, **limits: Any) -> Settings:
    agents = [
        Agent(name, "echo", name=name.title(), database="main", on_busy=on_busy)
        for name, on_busy in (("lined", "enqueue"), ("free", "allow"), ("strict", "reject"))
    ]
    teams = [Team("lined-team", "echo", ("free",), database="main", on_busy="enqueue")]
    workflows = [
        Workflow("lined-workflow", (Step("first", "free"),), database="main", on_busy="enqueue")
    ]
    return replace(
        settings,
        agents=(*settings.agents, *agents),
        teams=(*settings.teams, *teams),
        workflows=(*settings.workflows, *workflows),
        limits=Limits(**limits),
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return build_settings(tmp_path / "main.db")


@pytest.fixture
def postgres_settings(tmp_path: Path, postgres_entry: Entry) -> Settings:
    return replace(build_settings(tmp_path / "none.db"), databases=(postgres_entry,))


@contextlib.asynccontextmanager
async def serve(settings: Settings, count: int = 1) -> AsyncIterator[list[Service]]:
    async with contextlib.AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(Service.open(settings, create=True))
            for _ in range(count)
        ]
        for service in services:
            service.hosting.engine.claims.is_serving = True
        yield services


async def start(
    service: Service,
    component: str,
    message: str,
    session: str = "s1",
    kind: ComponentKind = "agent",
) -> dict[str, Any]:
    request = RunRequest(message=message, session_id=session, background=True)
    return dict((await user(service).runs.create(kind, component, request)).value)


async def read(service: Service, run_id: str) -> dict[str, Any]:
    return dict((await admin(service).runs.get(run_id)).value)


async def wait_for(service: Service, run_id: str, *statuses: str) -> dict[str, Any]:
    return await wait_for_run(admin(service), run_id, *statuses)


async def test_runs_of_a_session_begin_in_order(settings: Settings, worker: Worker) -> None:
    worker.held = {"1", "2", "3"}
    async with serve(add_agents(settings)) as (service,):
        runs = [await start(service, "lined", message) for message in "123"]
        await wait_until(lambda: worker.begun == ["1"])
        first, second, third = [await read(service, run["run_id"]) for run in runs]
        assert first["status"] == "RUNNING"
        assert first["queued_at"] is None
        assert first["queue_position"] is None
        assert [second["status"], third["status"]] == ["PENDING", "PENDING"]
        assert [second["queue_position"], third["queue_position"]] == [1, 2]
        assert second["queued_at"] == second["created_at"]
        assert second["started_at"] is None
        for number in "123":
            worker.held.discard(number)
            await wait_for(service, runs[int(number) - 1]["run_id"], "COMPLETED")
        ended = await read(service, runs[2]["run_id"])
        assert ended["queued_at"] == third["queued_at"]
        assert ended["queue_position"] is None
        assert ended["started_at"] > ended["queued_at"]
        # The checkpoints of the queued runs are gone, among others.
        database = service.hosting.databases.system
        assert await database.read(integrity.find_inconsistent(10, 2**62)) == []
    assert worker.begun == ["1", "2", "3"]
    assert worker.most == {"s1": 1}


@pytest.mark.parametrize("kind", ["team", "workflow"])
async def test_runs_of_teams_and_workflows_wait_for_their_turn(
    settings: Settings, worker: Worker, kind: ComponentKind
) -> None:
    worker.held = {"1", "2"}
    async with serve(add_agents(settings)) as (service,):
        runs = [await start(service, f"lined-{kind}", text, kind=kind) for text in "123"]
        await wait_until(lambda: worker.begun == ["1"])
        positions = [(await read(service, run["run_id"]))["queue_position"] for run in runs]
        assert positions == [None, 1, 2]
        request = CancelRequest(session_id="s1", wait=30, reason=None)
        run_id = runs[1]["run_id"]
        document = await user(service).runs.cancel(kind, f"lined-{kind}", run_id, request)
        assert document.value["cancel"] == "stopped"
        worker.held.clear()
        await wait_for(service, runs[2]["run_id"], "COMPLETED")
    assert worker.begun == ["1", "3"]


async def test_a_session_with_queued_runs_is_deleted_with_a_cancel_only(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        runs = [await start(service, "lined", message) for message in "123"]
        await wait_until(lambda: worker.begun == ["1"])
        with pytest.raises(errors.Conflict, match=runs[2]["run_id"]):
            await user(service).sessions.delete("s1")
        assert (await read(service, runs[2]["run_id"]))["queue_position"] == 2
        await user(service).sessions.delete("s1", cancel=True)
        for run in runs:
            with pytest.raises(errors.NotFound):
                await read(service, run["run_id"])
        again = await start(service, "lined", "4")
        await wait_for(service, again["run_id"], "COMPLETED")
    assert worker.begun == ["1", "4"]


async def test_the_sessions_do_not_wait_for_each_other(settings: Settings, worker: Worker) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        await start(service, "lined", "1")
        waiting = await start(service, "lined", "2")
        other = await start(service, "lined", "3", "s2")
        await wait_for(service, other["run_id"], "COMPLETED")
        assert (await read(service, waiting["run_id"]))["status"] == "PENDING"
        worker.held.clear()
        await wait_for(service, waiting["run_id"], "COMPLETED")


async def test_a_cancelled_run_leaves_the_queue_at_once(settings: Settings, worker: Worker) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        runs = [await start(service, "lined", message) for message in "123"]
        request = CancelRequest(session_id="s1", wait=30, reason="not needed")
        document = await user(service).runs.cancel("agent", "lined", runs[1]["run_id"], request)
        assert document.value["cancel"] == "stopped"
        assert (await read(service, runs[2]["run_id"]))["queue_position"] == 1
        worker.held.clear()
        await wait_for(service, runs[2]["run_id"], "COMPLETED")
        assert (await read(service, runs[1]["run_id"]))["status"] == "CANCELLED"
        assert await list_events(service, runs[1]["run_id"]) == ["RunQueued", "RunCancelled"]
        database = service.hosting.databases.system
        for run in runs:
            assert await database.read(approvals.get_checkpoint_attempt(run["run_id"])) is None
    assert worker.begun == ["1", "3"]


async def list_events(service: Service, run_id: str) -> list[str]:
    from agentctl.interface.requests import ResumeRequest

    events = user(service).runs.resume("agent", "lined", run_id, ResumeRequest("s1", -1))
    return [event.name async for event in events]


async def test_a_stream_of_a_queued_run_begins_with_its_place(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        await start(service, "lined", "1")
        stream = user(service).runs.stream(
            "agent", "lined", RunRequest(message="2", session_id="s1")
        )
        event = await anext(stream)
        assert (event.seq, event.name) == (0, "RunQueued")
        assert b'"queue_position":1' in event.data
        worker.held.clear()
        rest = [event async for event in stream]
        assert [event.name for event in rest] == ["RunStarted", "RunContent", "RunCompleted"]
        assert [event.seq for event in rest] == [1, 2, 3]


async def test_a_caller_that_leaves_takes_its_run_out_of_the_queue(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        await start(service, "lined", "1")
        request = RunRequest(message="2", session_id="s1")
        waiting = asyncio.create_task(user(service).runs.create("agent", "lined", request))
        stream = user(service).runs.stream("agent", "lined", request)
        await anext(stream)
        await stream.aclose()
        found: list[dict[str, Any]] = []

        async def both_wait() -> bool:
            page = (await admin(service).runs.list(RunFilter(session_id="s1", page=Page(10)))).value
            found[:] = page["data"]  # type: ignore[assignment]
            return len(found) == 3

        await wait_until(both_wait)
        waiting.cancel()
        await asyncio.wait([waiting])
        for run in found:
            if run["input"] == "2":
                await wait_for(service, run["run_id"], "CANCELLED")
        worker.held.clear()
    assert worker.begun == ["1"]


async def test_a_full_queue_refuses_without_a_row(
    settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.held = {"1"}
    monkeypatch.setattr(turns, "MAXIMUM_IN_SESSION", 2)
    monkeypatch.setattr(turns, "MAXIMUM_QUEUED", 3)
    async with serve(add_agents(settings)) as (service,):
        for message in "123":
            await start(service, "lined", message)
        with pytest.raises(errors.TooManyRequests, match="queue of the session"):
            await start(service, "lined", "4")
        for message in "56":
            worker.held.add(message)
            await start(service, "lined", message, "s2")
        with pytest.raises(errors.TooManyRequests, match="in the queue"):
            await start(service, "lined", "7", "s2")
        page = (await admin(service).runs.list(RunFilter())).value
        assert page["meta"]["total_count"] == 5
        with pytest.raises(errors.Conflict, match="dependencies"):
            await user(service).runs.create(
                "agent", "lined", RunRequest(message="8", session_id="s2", dependencies={"a": 1})
            )
        worker.held.clear()


async def start_when_free(service: Service, message: str) -> str:
    """Start a run once the slot of the last one is free, which is shortly after its end."""
    while True:
        with contextlib.suppress(errors.TooManyRequests):
            request = RunRequest(message=message)
            return (await user(service).runs.create("agent", "free", request)).value["status"]
        await asyncio.sleep(0.01)


async def test_background_runs_wait_for_a_slot(settings: Settings, worker: Worker) -> None:
    worker.held = {"1", "2", "a", "b", "c", "z"}
    async with serve(add_agents(settings, concurrent_runs=1)) as (service,):
        runs = [await start(service, "free", "1")]
        await wait_until(lambda: worker.begun == ["1"])
        runs += [await start(service, "free", message) for message in "abc"]
        runs += [await start(service, "free", "z", "s2")]
        with pytest.raises(errors.TooManyRequests):
            await user(service).runs.create("agent", "free", RunRequest(message="now"))
        with pytest.raises(errors.Conflict):
            await start(service, "strict", "x")
        for message in "1abcz":
            worker.held.discard(message)
        for run in runs:
            await wait_for(service, run["run_id"], "COMPLETED")
        async with asyncio.timeout(PATIENCE):
            assert await start_when_free(service, "now") == "COMPLETED"
    # The session with one run did not wait for all of the other session.
    assert worker.begun[:3] == ["1", "a", "z"]
    assert worker.begun == ["1", "a", "z", "b", "c", "now"]


async def test_a_state_read_before_the_claim_begins_no_run_again(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1", "2"}
    async with serve(add_agents(settings)) as (service,):
        claims = service.hosting.engine.claims
        database = service.hosting.databases.system
        first, second = [await start(service, "lined", message) for message in "12"]
        claims.is_serving = False
        worker.held.remove("1")
        await wait_for(service, first["run_id"], "COMPLETED")
        state = await database.read(run_reads.get_state(second["run_id"]))
        assert state is not None
        assert state.queue_turn
        assert await claims.claim(database, second["run_id"], state) is not None
        await wait_until(lambda: worker.begun == ["1", "2"])
        # Two looks at the queue, one of the sweep, may have read the run before the claim.
        assert await claims.claim(database, second["run_id"], state) is None
        worker.held.clear()
        await wait_for(service, second["run_id"], "COMPLETED")
        assert worker.begun == ["1", "2"]


async def test_a_server_with_few_slots_begins_the_runs_of_another_one(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1"}
    limited = add_agents(settings, concurrent_runs=1)
    async with (
        serve(limited) as (full,),
        serve(add_agents(settings, concurrent_runs=SPARE_LEGS)) as (idle,),
    ):
        await start(full, "free", "1", "s1")
        await wait_until(lambda: worker.begun == ["1"])
        run = await start(full, "free", "2", "s2")
        database = idle.hosting.databases.system
        # The clock of the machine that admitted the run may be ahead.
        ahead = Sql("UPDATE runs SET queued_at = queued_at + 3600000000 WHERE run_id = :run_id")
        await database.write(ahead.execute(run_id=run["run_id"]))
        await idle.hosting.engine.claims.claim_waiting(database)
        assert (await wait_for(idle, run["run_id"], "COMPLETED"))["content"] == "2"
        waits = idle.hosting.engine.counters.queue_seconds
        assert (waits.count, waits.total) == (1, 0.0)
        worker.held.clear()


async def test_another_server_begins_a_queued_run(
    postgres_settings: Settings, worker: Worker
) -> None:
    worker.held = {"1", "3"}
    limited = add_agents(postgres_settings, concurrent_runs=1)
    async with serve(limited) as (full,), serve(add_agents(postgres_settings)) as (idle,):
        await idle.prepare()
        await start(full, "free", "1", "s1")
        await wait_until(lambda: worker.begun == ["1"])
        run = await start(full, "free", "2", "s2")
        record = await wait_for(full, run["run_id"], "COMPLETED")
        assert record["content"] == "2"
        worker.held.clear()


async def test_the_state_of_a_request_is_stored_when_its_run_begins(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1", "2"}
    async with serve(add_agents(settings)) as (service,):
        runs = [await start(service, "lined", "1")]
        for number in "23":
            request = RunRequest(
                message=number, session_id="s1", background=True, session_state={"page": number}
            )
            runs.append(dict((await user(service).runs.create("agent", "lined", request)).value))

        async def read_state() -> Any:
            return (await admin(service).sessions.get("s1")).value["session_state"]

        assert not await read_state()
        worker.held.discard("1")
        await wait_for(service, runs[1]["run_id"], "RUNNING")
        assert await read_state() == {"page": "2"}
        worker.held.clear()
        await wait_for(service, runs[2]["run_id"], "COMPLETED")
        assert await read_state() == {"page": "3"}


async def test_the_end_of_a_lost_run_lets_the_next_one_begin(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings), 2) as (lost, other):
        await start(lost, "lined", "1")
        await wait_until(lambda: worker.begun == ["1"])
        run = await start(other, "lined", "2")
        database = other.hosting.databases.system
        await recover_runs(database, lost.hosting.engine.worker_id)
        await other.hosting.engine.claims.claim_waiting(database)
        await wait_for(other, run["run_id"], "COMPLETED")
        worker.held.clear()


OLD_CLAIM = (
    "UPDATE runs SET status = 'RUNNING', owner = 'old', leg_effects = 0 WHERE run_id = :run_id"
    " AND status = 'PENDING' AND owner IS NULL RETURNING run_id"
)
OLD_END = (
    "UPDATE runs SET status = 'ERROR', attempt = attempt + 1 WHERE run_id = :run_id"
    " AND status IN ('PENDING', 'RUNNING', 'PAUSED') RETURNING run_id"
)


async def test_a_server_of_an_earlier_version_changes_no_queued_run(
    settings: Settings, worker: Worker
) -> None:
    await check_old_server(settings, worker)


async def test_a_server_of_an_earlier_version_changes_no_queued_run_on_postgresql(
    postgres_settings: Settings, worker: Worker
) -> None:
    await check_old_server(postgres_settings, worker)


async def check_old_server(settings: Settings, worker: Worker) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        await start(service, "lined", "1")
        run = await start(service, "lined", "2")
        database = service.hosting.databases.system
        for statement in (OLD_CLAIM, OLD_END):
            assert not await database.write(Sql(statement).has_rows(run_id=run["run_id"]))
        worker.held.clear()
        assert (await wait_for(service, run["run_id"], "COMPLETED"))["content"] == "2"


async def test_a_run_that_waits_too_long_ends_with_an_error(
    settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_claims, "QUEUE_SECONDS", 600)
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        await start(service, "lined", "1")
        runs = [await start(service, "lined", message) for message in "23"]
        claims = service.hosting.engine.claims
        database = service.hosting.databases.system
        await claims.end_overdue(database)
        assert (await read(service, runs[0]["run_id"]))["status"] == "PENDING"
        age = Sql("UPDATE runs SET queued_at = queued_at - 601000000 WHERE run_id = :run_id")
        await database.write(age.execute(run_id=runs[0]["run_id"]))
        await claims.end_overdue(database)
        ended = await read(service, runs[0]["run_id"])
        assert (ended["status"], ended["error"]["code"]) == ("ERROR", "QUEUE_TIMEOUT")
        assert ended["messages"][0]["content"] == "2"
        assert await list_events(service, runs[0]["run_id"]) == ["RunQueued", "RunError"]
        worker.held.clear()
        await wait_for(service, runs[1]["run_id"], "COMPLETED")
    assert worker.begun == ["1", "3"]


async def test_the_sweep_finds_a_run_that_no_one_has_let_begin(
    settings: Settings, worker: Worker
) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings)) as (service,):
        first = await start(service, "lined", "1")
        second = await start(service, "lined", "2")
        claims = service.hosting.engine.claims
        database = service.hosting.databases.system
        # The end of a run by a server that knows no queue.
        forget = Sql("UPDATE sessions SET has_queue = 0")
        await database.write(forget.execute())
        worker.held.clear()
        await wait_for(service, first["run_id"], "COMPLETED")
        assert (await read(service, second["run_id"]))["status"] == "PENDING"
        await claims.advance_stalled(database)
        await wait_for(service, second["run_id"], "COMPLETED")


async def test_a_local_command_begins_only_its_own_run(settings: Settings, worker: Worker) -> None:
    worker.held = {"1"}
    async with serve(add_agents(settings), 3) as services:
        for service in services:
            service.hosting.engine.claims.is_serving = False
        first, second, third = services
        ended = await start(first, "lined", "1")
        waiting = await start(second, "lined", "2")
        worker.held.clear()
        await wait_for(third, ended["run_id"], "COMPLETED")
        record = await wait_for(third, waiting["run_id"], "COMPLETED")
        assert record["content"] == "2"
        assert not first.hosting.engine.find_run(waiting["run_id"])
