"""Runs on the local backend: stored records, streams and failures."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentctl import errors
from agentctl.interface.requests import (
    MAXIMUM_LIMIT,
    CancelRequest,
    RunFilter,
    RunRequest,
    SessionRunsQuery,
)
from agentctl.runs.life import finish, supervision
from agentctl.service.documents import documents, session_documents
from agentctl.service.reads import family
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import run_reads
from agentctl.work import event_loop
from tests.kit.clock import pass_time, wait_for_timer
from tests.kit.conditions import PATIENCE, wait_for_run, wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import (
    admin,
    collect_run_events,
    event_data,
    open_service,
    streamed_run,
    user,
    wait_for_running,
)


async def test_run_is_returned_stored_and_counted(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        run = (
            await operations.runs.create("agent", "echo", RunRequest("hello", session_id="s1"))
        ).value
        assert (run["status"], run["content"], run["input"]) == ("COMPLETED", "hello", "hello")
        assert run["agent_id"] == "echo"
        assert run["user_id"] == "me"
        assert run["error"] is None
        session = (await operations.sessions.get("s1")).value
        roles = [message["role"] for message in session["chat_history"] or ()]
        assert roles == ["system", "user", "assistant"]
        assert session["total_tokens"] == run["metrics"]["total_tokens"] > 0
        stored = (await operations.runs.get(run["run_id"])).value
        assert stored == run


async def test_stream_events_are_numbered_and_complete(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        events = await collect_run_events(
            user(service), "agent", "echo", message="one two", session_id="s1"
        )
        assert [event.seq for event in events] == list(range(len(events)))
        names = [event.name for event in events]
        assert names[0] == "RunStarted"
        assert names[-1] == "RunCompleted"
        assert set(names[1:-1]) == {"RunContent"}
        text = "".join(event_data(event)["content"] for event in events[1:-1])
        assert text == event_data(events[-1])["content"] == "one two"


async def test_unchanged_system_message_appears_once(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for agent in ("echo", "echo", "history", "echo"):
            await operations.runs.create("agent", agent, RunRequest("hi", session_id="s1"))
        history = (await operations.sessions.get("s1")).value["chat_history"] or []
        systems = [entry["content"] for entry in history if entry["role"] == "system"]
        assert systems == ["Be echo.", "Be history.", "Be echo."]


async def test_model_gets_the_last_runs_only(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for number in range(7):
            await operations.runs.create(
                "agent", "echo", RunRequest(f"turn {number}", session_id="s1")
            )
        run = (
            await operations.runs.create("agent", "history", RunRequest("now", session_id="s1"))
        ).value
        sent = [text for _, text in orjson.loads(run["content"] or "")]
        assert [text for text in sent if text.startswith("turn")] == [
            text for number in range(2, 7) for text in (f"turn {number}", f"turn {number}")
        ]


@pytest.mark.parametrize("count", [0, 2])
async def test_model_gets_as_many_runs_as_configured(
    tmp_path: Path, model_endpoint: ModelEndpoint, count: int
) -> None:
    agent = f'[[agents]]\nid = "recall"\nmodel = "history"\nhistory_runs = {count}\n'
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=agent)
    async with open_service(deployment) as service:
        operations = user(service)
        for number in range(3):
            await operations.runs.create("agent", "echo", RunRequest(f"turn {number}", "s1"))
        run = (await operations.runs.create("agent", "recall", RunRequest("now", "s1"))).value
        texts = [text for role, text in orjson.loads(run["content"] or "") if role == "user"]
        assert texts == [*("turn 1", "turn 2")[:count], "now"]


@pytest.mark.parametrize(
    ("sizes", "sent"),
    [
        ((10, 10), "01"),
        ((1_000, 1_000), "01"),
        ((1_000, 1_000, 1_000), "12"),
        ((10, 3_000), "1"),
        ((10, 3_000, 10), "2"),
    ],
)
async def test_history_of_a_run_has_a_maximum_size(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], sent: str
) -> None:
    """docs/internals/security-cases.md M14."""
    monkeypatch.setattr(supervision, "HISTORY_BYTES", 6_000)
    async with open_service(deployment) as service:
        operations = user(service)
        for number, size in enumerate(sizes):
            request = RunRequest(f"{number}" * size, session_id="s1")
            await operations.runs.create("agent", "echo", request)
        request = RunRequest("now", session_id="s1")
        run = (await operations.runs.create("agent", "history", request)).value
        texts = [text for role, text in orjson.loads(run["content"] or "") if role == "user"]
        assert [text[0] for text in texts] == [*sent, "n"]


async def test_background_run_continues_without_its_caller(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest("later", session_id="s1", background=True)
        run_id = (await operations.runs.create("agent", "echo", request)).value["run_id"]
        await wait_for_run(operations, run_id, "COMPLETED")


async def test_team_delegates_to_a_member_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        events = await collect_run_events(
            operations, "team", "crew", message="ask echo", session_id="t1"
        )
        names = [event.name for event in events]
        assert names[0] == "TeamRunStarted"
        assert names[-1] == "TeamRunCompleted"
        assert {"TeamToolCallStarted", "RunStarted", "RunCompleted", "TeamRunContent"} <= {*names}
        leader, member = (await operations.sessions.list_runs("t1")).value
        assert leader["member_runs"] == [member["run_id"]]
        assert member["parent_run_id"] == leader["run_id"]
        assert member["agent_id"] == "echo"
        session = (await operations.sessions.get("t1")).value
        totals = [run["metrics"]["total_tokens"] for run in (leader, member)]
        assert session["total_tokens"] == sum(totals)


async def test_route_and_broadcast_report_failed_members(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        routed = (await operations.runs.create("team", "desk", RunRequest("to echo"))).value
        assert routed["status"] == "COMPLETED"
        sung = (
            await operations.runs.create("team", "choir", RunRequest("sing", session_id="c"))
        ).value
        assert sung["status"] == "COMPLETED"
        members = (await operations.sessions.list_runs("c")).value[1:]
        assert {run["status"] for run in members} == {"COMPLETED", "ERROR"}


async def test_workflow_steps_are_runs_with_chained_input(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        events = await collect_run_events(
            operations, "workflow", "line", message="go", session_id="w1"
        )
        names = [event.name for event in events]
        assert names[0] == "WorkflowStarted"
        assert names[-1] == "WorkflowCompleted"
        assert names.count("StepStarted") == names.count("StepCompleted") == 2
        runs = (await operations.sessions.list_runs("w1")).value
        assert runs[0]["workflow_id"] == "line"
        assert len(runs[0]["member_runs"]) == 2
        session = (await operations.sessions.get("w1")).value
        assert "chat_history" not in session
        assert session["workflow_name"] == "Line"


async def test_failed_step_ends_the_workflow(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        events = await collect_run_events(
            operations, "workflow", "broken", message="go", session_id="w1"
        )
        assert events[-1].name == "WorkflowError"
        runs = (await operations.sessions.list_runs("w1")).value
        assert [run["status"] for run in runs] == ["ERROR", "ERROR"]


@pytest.mark.parametrize(
    ("agent", "code"), [("http-500", "MODEL_UNAVAILABLE"), ("http-401", "MODEL_KEY_REJECTED")]
)
async def test_model_failure_is_a_run_with_an_error_code(
    deployment: Deployment, agent: str, code: str
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        run = (await operations.runs.create("agent", agent, RunRequest("x", session_id="s"))).value
        assert run["status"] == "ERROR"
        assert run["error"] is not None
        assert run["error"]["code"] == code
        events = await collect_run_events(operations, "agent", agent, message="x", session_id="s")
        assert events[-1].name == "RunError"
        after = await operations.runs.create("agent", "echo", RunRequest("y", session_id="s"))
        assert after.value["status"] == "COMPLETED"


async def test_concurrent_runs_of_a_session_are_all_stored(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        requests = [RunRequest(f"m{number}", session_id="s1") for number in range(20)]
        await asyncio.gather(*(operations.runs.create("agent", "echo", one) for one in requests))
        runs = (await operations.sessions.list_runs("s1")).value
        assert sorted(run["input"] for run in runs) == sorted(one.message for one in requests)
        total = (await operations.sessions.get("s1")).value["total_tokens"]
        assert total == sum(run["metrics"]["total_tokens"] for run in runs)


async def test_busy_session_rejects_an_exclusive_component(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "alone", message="x", session_id="s1"):
            with pytest.raises(errors.Conflict):
                await operations.runs.create("agent", "alone", RunRequest("y", session_id="s1"))


@pytest.mark.parametrize("agent", ["hang", "tool-stubborn"])
async def test_run_over_its_timeout_ends_as_error(
    tmp_path: Path, model_endpoint: ModelEndpoint, agent: str
) -> None:
    model_endpoint.forget()
    limits = "[runs]\ntimeout_seconds = 50"
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=limits)
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest('{"seconds": 200}', session_id="s")
        running = asyncio.create_task(operations.runs.create("agent", agent, request))
        if agent == "tool-stubborn":
            await wait_for_timer(200)
        await wait_until(lambda: model_endpoint.requests(agent.replace("-", ":")))
        await pass_time(50)

        run = (await running).value
        assert run["status"] == "ERROR"
        assert run["error"] is not None
        assert run["error"]["code"] == "RUN_TIMEOUT"
        assert run["cancel_requested_at"] is None

        # The event loop waits for the stubborn task at its end.
        if agent == "tool-stubborn":
            await pass_time(150)


async def test_leader_gets_the_timeout_of_a_member(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> None:
    folder = tmp_path_factory.mktemp("impatient")
    limits = "[runs]\ntool_timeout_seconds = 0.2"
    async with open_service(
        create_deployment(folder, model_endpoint.base_url, extra=limits)
    ) as service:
        operations = user(service)
        run = (await operations.runs.create("team", "crew", RunRequest("ask hang", "t1"))).value
        assert run["status"] == "COMPLETED"
        assert [tool["tool_call_error"] for tool in run["tools"]] == [True]
        member = (await operations.sessions.list_runs("t1")).value[1]
        assert member["error"] is not None
        assert member["error"]["code"] == "RUN_TIMEOUT"


async def test_run_over_the_limit_is_a_429(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> None:
    folder = tmp_path_factory.mktemp("few")
    limits = "[limits]\nconcurrent_runs = 1"
    async with open_service(
        create_deployment(folder, model_endpoint.base_url, extra=limits)
    ) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1"):
            with pytest.raises(errors.TooManyRequests):
                await operations.runs.create("agent", "echo", RunRequest("y"))


async def test_invalid_request_stores_nothing(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        with pytest.raises(errors.NotFound, match="Agent not found"):
            await operations.runs.create("agent", "nobody", RunRequest("x"))
        with pytest.raises(errors.ValidationFailed, match="message"):
            await operations.runs.create("agent", "echo", RunRequest(""))
        with pytest.raises(errors.ValidationFailed, match="message"):
            await operations.runs.create("agent", "echo", RunRequest("a\0b"))
        with pytest.raises(errors.ValidationFailed, match="session_id"):
            await operations.runs.create("agent", "echo", RunRequest("x", session_id="no/slash"))
        with pytest.raises(errors.TooLarge):
            await operations.runs.create("agent", "echo", RunRequest("x" * 300_000))
        assert (await admin(service).runs.list(RunFilter())).value["meta"]["total_count"] == 0


async def test_session_rejects_another_component_type(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "echo", RunRequest("x", session_id="s1"))
        with pytest.raises(errors.Conflict, match="s1 is for runs of agents"):
            await operations.runs.create("team", "crew", RunRequest("x", session_id="s1"))
        other = await operations.runs.create("agent", "history", RunRequest("x", session_id="s1"))
        assert other.value["status"] == "COMPLETED"


async def test_disconnected_caller_stops_its_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        leaving = asyncio.create_task(
            operations.runs.create("agent", "hang", RunRequest("x", session_id="s1"))
        )
        run_id = (await wait_for_running(operations))["run_id"]
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        run = await wait_for_run(operations, run_id, "CANCELLED")
        assert run["cancel_requested_by"] == "me"
        assert run["cancel_reason"] == "The client disconnected"


async def test_run_is_stored_in_the_database_of_its_component(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        run = (
            await operations.runs.create("agent", "apart", RunRequest("x", session_id="s1"))
        ).value
        with pytest.raises(errors.NotFound):
            await operations.sessions.get("s1")
        assert (await operations.runs.get(run["run_id"], db_id="second")).value == run
        listed = await operations.runs.list_of_component("agent", "apart", RunFilter())
        assert [found["run_id"] for found in listed.value["data"]] == [run["run_id"]]


async def test_session_runs_end_at_the_default_limit(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for _ in range(MAXIMUM_LIMIT // 20 + 1):
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    request = RunRequest("x", session_id="s1")
                    group.create_task(operations.runs.create("agent", "echo", request))
        first = (await operations.sessions.list_runs("s1")).value
        assert len(first) == MAXIMUM_LIMIT
        query = SessionRunsQuery(after=first[-1]["run_id"])
        assert len((await operations.sessions.list_runs("s1", query)).value) == 20


async def test_long_reads_do_not_delay_a_run(deployment: Deployment) -> None:
    release = threading.Event()

    @unit
    def read_slowly() -> Steps[None]:
        release.wait(PATIENCE)
        yield from run_reads.get_state("absent")

    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "history", RunRequest("first", session_id="s1"))
        database = service.hosting.databases["main"]
        reads = [asyncio.create_task(database.read(read_slowly(), size="large")) for _ in range(9)]
        try:
            await wait_until(lambda: database.load().waiting > 0)
            request = RunRequest("second", session_id="s1")
            run = await asyncio.wait_for(
                operations.runs.create("agent", "history", request), PATIENCE
            )
            assert "first" in run.value["content"]
        finally:
            release.set()
            await asyncio.gather(*reads)


async def test_session_runs_have_limit_and_after(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for number in range(3):
            await operations.runs.create("agent", "echo", RunRequest(f"{number}", session_id="s1"))
        everything = (await operations.sessions.list_runs("s1")).value
        query = SessionRunsQuery(limit=1, after=everything[0]["run_id"])
        assert (await operations.sessions.list_runs("s1", query)).value == everything[1:2]
        with pytest.raises(errors.ValidationFailed, match="after"):
            await operations.sessions.list_runs("s1", SessionRunsQuery(after="nothing"))


async def test_large_documents_are_built_outside_of_the_event_loop(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """decision 75: a step of the event loop does not grow with a result."""
    builders: dict[str, set[int]] = {}

    def watch(module: Any, name: str) -> None:
        build = getattr(module, name)

        def record(*arguments: Any, **options: Any) -> Any:
            builders.setdefault(name, set()).add(threading.get_ident())
            return build(*arguments, **options)

        monkeypatch.setattr(module, name, record)

    async with open_service(deployment) as service:
        operations = user(service)
        watch(documents, "join_array")
        watch(session_documents, "build_session_document")
        watch(finish, "build_run_end")
        watch(family, "read_run_documents")
        request = RunRequest("x" * 250_000, session_id="large")
        for _ in range(3):
            run = (await operations.runs.create("agent", "echo", request)).value
        await operations.runs.get(run["run_id"])
        await operations.sessions.get("large")
        await operations.sessions.list_runs("large")
    assert len(builders) == 4
    assert threading.get_ident() not in set[int]().union(*builders.values())


class FirstCommit:
    """A database that can be written once, and not read from then on."""

    def __init__(self, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_made = False
        self._read = database.read
        self._write = database.write
        monkeypatch.setattr(database, "write", self._commit)
        monkeypatch.setattr(database, "read", self._refuse)

    async def _commit(self, work: Any, **options: Any) -> Any:
        result = await self._write(work, **options)
        self.is_made = True
        return result

    async def _refuse(self, work: Any, **options: Any) -> Any:
        if self.is_made:
            raise errors.Unavailable("The database is busy")
        return await self._read(work, **options)


LINED = """
[limits]
concurrent_runs = 1

[[agents]]
id = "lined"
model = "echo"
on_busy = "enqueue"
"""


@pytest.mark.parametrize("is_queued", [False, True])
async def test_start_is_not_refused_after_its_commit(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch, is_queued: bool
) -> None:
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=LINED)
    async with open_service(deployment) as service:
        operations = user(service)
        if is_queued:
            request = RunRequest("wait", "s0", background=True)
            first = (await operations.runs.create("agent", "hang", request)).value
            await wait_for_running(operations, session_id="s0")

        with monkeypatch.context() as refusing:
            commit = FirstCommit(service.hosting.databases.system, refusing)
            refusing.setattr(event_loop, "RETRY_LIMIT_SECONDS", 0)
            request = RunRequest("hello", "s1", background=not is_queued)
            started = (await operations.runs.create("agent", "lined", request)).value
        assert commit.is_made
        assert (started["status"], started["input"]) == ("PENDING", "hello")

        # The stored run goes on when the database can be read again.
        if is_queued:
            await operations.runs.cancel("agent", "hang", first["run_id"], CancelRequest("s0"))
        await wait_for_run(operations, started["run_id"], "COMPLETED")
