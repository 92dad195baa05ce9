"""Members that a library executes: their records, events, cancels, failures, pauses and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, ResumeRequest, RunRequest
from agentctl.runs.life.admission import RunLost
from agentctl.runs.states import Ending
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.components import execute
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Ask, Paused
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_members import LibraryMembers
from agentctl.runtime.runners.runner import run_hosted_agent
from agentctl.service.service import Service
from agentctl.store.database import Database
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user, wait_for_live_run
from tests.runs.test_legs import database_of, decide, wait_for_status

Script = Callable[[HostedRun, LibraryMembers], Awaitable[None]]


class Library:
    """A runner that executes a script in the place of a library."""

    kind = "scripted"
    input_schema = None

    def __init__(self, script: Script) -> None:
        self.script = script

    async def run(self, message: str, run: HostedRun) -> None:
        await self.script(run, LibraryMembers(run))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], None]:
    """Let a script execute the runs of all components."""

    def install(script: Script) -> None:
        async def execute_script(component: Any, context: Any, catalog: Any) -> None:
            async def open_runner() -> Any:
                return Library(script)

            await run_hosted_agent(open_runner(), context)

        monkeypatch.setattr(execute, "_execute", execute_script)

    return install


async def stream(service: Service) -> list[tuple[str, dict[str, Any]]]:
    """Start a run; return the names and data of all its events."""
    events = user(service).runs.stream("agent", "echo", RunRequest(message="go"))
    return [(event.name, orjson.loads(event.data)) async for event in events]


async def start(service: Service) -> dict[str, Any]:
    return dict((await user(service).runs.create("agent", "echo", RunRequest(message="go"))).value)


async def get(service: Service, run_id: str) -> dict[str, Any]:
    return dict((await user(service).runs.get(run_id)).value)


async def work_with_nested_members(run: HostedRun, members: LibraryMembers) -> None:
    """A root calls a team, and its member calls a tool: all report, and two use tokens."""
    run.start_call("c1", "ask_researcher", {"question": "why"})

    # Nothing waits for the row of the member: its reports come first.
    team = members.start("1", "researchers", "why", kind="team", call_id="c1")
    member = members.start("2", "Dr. Search", "look", parent="1")
    member.run.start_call("c2", "search", {"q": "why"})
    member.run.end_call("c2", "because")
    member.run.add_text("It is so.")
    member.run.environment.add_usage({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7})
    members.end("2")
    team.run.add_text("They say so.")
    members.end("1")

    run.end_call("c1", "They say so.")
    run.add_text("So.")
    run.environment.add_usage({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})


async def test_members_have_records_of_their_own(deployment: Deployment, host: Any) -> None:
    host(work_with_nested_members)
    async with open_service(deployment) as service:
        root = await start(service)
        (team_id,) = root["member_runs"]
        team = await get(service, team_id)
        (member_id,) = team["member_runs"]
        member = await get(service, member_id)

    assert (team["team_id"], team["parent_run_id"]) == ("researchers", root["run_id"])
    assert (member["agent_id"], member["parent_run_id"]) == ("Dr. Search", team_id)
    assert (member["status"], member["input"]) == ("COMPLETED", "look")
    assert member["content"] == "It is so."
    roles = [message["role"] for message in member["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert member["metrics"]["total_tokens"] == 7

    # The tokens of the members count for the root, but not in its own metrics.
    assert (root["status"], root["content"]) == ("COMPLETED", "So.")
    assert (root["total_tokens"], root["metrics"]["total_tokens"]) == (9, 2)
    spans = [(span["kind"], span["parent"]) for span in root["spans"]]
    assert spans == [("tool", None), ("member", "c1")]
    assert root["spans"][1]["status"] == "completed"


async def test_events_of_members_have_the_order_of_their_reports(
    deployment: Deployment, host: Any
) -> None:
    """The rows and the ends of members are stored later than they report."""
    host(work_with_nested_members)
    async with open_service(deployment) as service:
        events = await stream(service)
        root_id = events[0][1]["run_id"]
        (team_id,) = (await get(service, root_id))["member_runs"]
        (member_id,) = (await get(service, team_id))["member_runs"]

    names = {root_id: "root", team_id: "team", member_id: "member"}
    assert [(names[data["run_id"]], name) for name, data in events] == [
        ("root", "RunStarted"), ("root", "ToolCallStarted"),
        ("team", "TeamRunStarted"), ("member", "RunStarted"),
        ("member", "ToolCallStarted"), ("member", "ToolCallCompleted"), ("member", "RunContent"),
        ("member", "RunCompleted"), ("team", "TeamRunContent"), ("team", "TeamRunCompleted"),
        ("root", "ToolCallCompleted"), ("root", "RunContent"), ("root", "RunCompleted"),
    ]  # fmt: skip
    times = [data["at"] for name, data in events if not name.endswith("RunCompleted")]
    assert times == sorted(times)


async def test_member_without_a_row_does_not_hold_back_later_events(
    deployment: Deployment, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "lost", "look").run.add_text("Nobody reads this.")
        run.add_text("So.")
        members.end("1")

    def refuse(*_: Any) -> Any:
        raise RunLost

    monkeypatch.setattr("agentctl.runs.life.members.admit_child_run", refuse)
    host(script)
    async with open_service(deployment) as service:
        events = await stream(service)
    assert [name for name, _ in events] == ["RunStarted", "RunContent", "RunCompleted"]


class RefusedWrites:
    """Let the next writes of a database fail, as if it were busy."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.left = number
        self._write = database.write
        monkeypatch.setattr(database, "write", self.write)

    async def write(self, work: Any, **options: Any) -> Any:
        if self.left:
            self.left -= 1
            raise errors.Unavailable("The database is busy")
        return await self._write(work, **options)


async def test_refused_writes_delay_the_events_of_members_and_lose_none(
    deployment: Deployment, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[RefusedWrites] = []

    async def script(run: HostedRun, members: LibraryMembers) -> None:
        # The row of the member, the batches of events, and the end.
        refused.append(RefusedWrites(database_of(service), monkeypatch, 6))
        for key in ("1", "2"):
            members.start(key, f"member-{key}", "look").run.add_text(f"Of {key}.")
            members.end(key)
        run.add_text("So.")

    host(script)
    async with open_service(deployment) as service:
        async with asyncio.timeout(PATIENCE):
            events = await stream(service)
        root = await get(service, events[0][1]["run_id"])
        members = [await get(service, run_id) for run_id in root["member_runs"]]
        request = ResumeRequest(root["session_id"], -1)
        resumed = user(service).runs.resume("agent", "echo", root["run_id"], request)
        stored = [(event.name, orjson.loads(event.data)) async for event in resumed]

    assert [writes.left for writes in refused] == [0]
    assert [record["status"] for record in (root, *members)] == ["COMPLETED"] * 3
    assert [name for name, _ in events] == [
        "RunStarted",
        *["RunStarted", "RunContent", "RunCompleted"] * 2,
        "RunContent",
        "RunCompleted",
    ]
    assert stored == events


async def test_cancel_ends_open_members(deployment: Deployment, host: Any) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "slow", "wait").run.add_text("I wait")
        await asyncio.sleep(60)

    host(script)
    async with open_service(deployment) as service:
        run_id, member_id = await start_in_background(service)

        request = CancelRequest(session_id="s", wait=30)
        ended = await user(service).runs.cancel("agent", "echo", run_id, request)

        assert ended.value["cancel"] == "stopped"
        member = await wait_for_status(service, member_id, "CANCELLED")
        assert (member["content"], member["holding"]) == ("I wait", [])
        assert member["stopped_at"] is not None


async def start_in_background(service: Service) -> tuple[str, str]:
    """Start a run, and wait until its member has a row; return the ids of both."""
    request = RunRequest(message="go", session_id="s", background=True)
    run_id = (await user(service).runs.create("agent", "echo", request)).value["run_id"]

    async def find_members() -> list[str]:
        return list((await get(service, run_id))["member_runs"])

    (member_id,) = await wait_until(find_members)
    return run_id, member_id


async def test_member_is_stopped_only_when_its_library_is(
    deployment: Deployment, host: Any
) -> None:
    release = asyncio.Event()

    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "stubborn", "wait")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    host(script)
    async with open_service(deployment) as service:
        run_id, member_id = await start_in_background(service)

        request = CancelRequest(session_id="s", wait=30)
        await user(service).runs.cancel("agent", "echo", run_id, request)
        member = await wait_for_status(service, member_id, "CANCELLED")
        assert (member["stopped_at"], member["holding"]) == (None, ["runner"])

        release.set()

        async def has_stopped() -> bool:
            return (await get(service, member_id))["stopped_at"] is not None

        await wait_until(has_stopped)
        assert (await get(service, member_id))["holding"] == []


async def test_cancel_of_a_member_cancels_its_run(deployment: Deployment, host: Any) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "slow", "wait")
        await asyncio.sleep(60)

    host(script)
    async with open_service(deployment) as service:
        run_id, member_id = await start_in_background(service)
        member = await wait_for_live_run(service, member_id)

        member.stop(Ending.cancelled("ann", "enough"))

        for ended_id in (run_id, member_id):
            record = await wait_for_status(service, ended_id, "CANCELLED")
            assert (record["cancel_requested_by"], record["cancel_reason"]) == ("ann", "enough")


async def test_late_report_of_a_member_does_not_complete_its_run(
    deployment: Deployment, host: Any
) -> None:
    """The member ends first, and its library reports while the stop reaches its run."""

    async def script(run: HostedRun, members: LibraryMembers) -> None:
        member = members.start("1", "slow", "wait").run
        stopped: Any = member.environment
        await wait_until(lambda: stopped.begun.done())
        stopped.stop(Ending.cancelled("system:parent", None))
        await wait_until(lambda: stopped.has_ended)
        stopped.root.stop(Ending.cancelled("ann", "enough"))
        member.add_text("late")

    host(script)
    async with open_service(deployment) as service:
        record = await start(service)
    assert (record["status"], record["cancel_requested_by"]) == ("CANCELLED", "ann")


async def test_failure_is_that_of_the_open_member(deployment: Deployment, host: Any) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "done", "a")
        members.end("1")
        members.start("2", "broken", "b")
        raise ExecutionError("MODEL_ANSWER_INVALID")

    host(script)
    async with open_service(deployment) as service:
        run = await start(service)
        done, broken = [await get(service, run_id) for run_id in run["member_runs"]]

    assert (done["agent_id"], done["status"]) == ("done", "COMPLETED")
    assert (broken["agent_id"], broken["status"]) == ("broken", "ERROR")
    assert run["error"]["code"] == broken["error"]["code"] == "MODEL_ANSWER_INVALID"


async def test_failure_cancels_several_open_members(deployment: Deployment, host: Any) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "first", "look")
        members.start("2", "second", "look")
        raise ExecutionError("MODEL_ANSWER_INVALID")

    host(script)
    async with open_service(deployment) as service:
        run = await start(service)

        for run_id in run["member_runs"]:
            record = await wait_for_status(service, run_id, "CANCELLED")
            assert record["cancel_requested_by"] == "system:parent"


async def test_member_pauses_and_goes_on_with_its_run(deployment: Deployment, host: Any) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        if run.environment.leg is None:
            payer = members.start("1", "payer", "pay bob")
            bank = members.start("2", "bank", "transfer", parent="1")
            bank.run.add_text("Before. ")
            payer.run.environment.add_usage({"input_tokens": 5})
            ask = Ask("approval", "call-1", "pay", {"amount": 10})
            raise Paused([ask], {"members": members.to_json()})
        await members.restore(run.environment.leg.state["members"])
        restored = members.find("2")
        assert restored is not None
        restored.run.add_text("After.")

    host(script)
    async with open_service(deployment) as service:
        run = await start(service)
        (payer_id,) = run["member_runs"]
        payer = await get(service, payer_id)
        assert (run["status"], payer["status"]) == ("PAUSED", "PAUSED")

        assert await decide(service, run["run_id"], "approve")
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])

        await wait_for_status(service, run["run_id"], "COMPLETED")
        payer = await get(service, payer_id)
        bank = await get(service, payer["member_runs"][0])
    assert (payer["status"], payer["metrics"]["input_tokens"]) == ("COMPLETED", 5)
    assert (bank["status"], bank["content"]) == ("COMPLETED", "Before. After.")


async def test_crash_ends_members_as_their_run(deployment: Deployment, host: Any) -> None:
    async def script(run: HostedRun, members: LibraryMembers) -> None:
        members.start("1", "slow", "wait")
        await asyncio.sleep(60)

    host(script)
    async with open_service(deployment) as service:
        run_id, member_id = await start_in_background(service)

        await recover_runs(database_of(service), service.hosting.engine.worker_id)

        for lost_id in (run_id, member_id):
            record = await wait_for_status(service, lost_id, "ERROR")
            assert record["error"]["code"] == "WORKER_LOST"
