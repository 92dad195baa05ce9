"""Every started run ends, and its end is stored despite failures."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentctl import errors
from agentctl.auth.principal import local_principal
from agentctl.interface.requests import CancelRequest, RunFilter, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.runs.engine import changes, engine
from agentctl.runs.life import finish, supervision
from agentctl.runs.life.live import LiveRun
from agentctl.runs.log import stream
from agentctl.runs.log.event_rows import decode_events
from agentctl.runs.states import Ending
from agentctl.runs.workers.recovery import recover_runs
from agentctl.service.runs import runs
from agentctl.service.service import ServiceOperations
from agentctl.store.repositories import events as event_store
from agentctl.store.repositories import sessions
from agentctl.store.sqlite import connection, database
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
    wait_for_live_run,
    wait_for_running,
)


@pytest.fixture
def short_lock_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the writer time out on a lock at once, and retry soon."""
    monkeypatch.setattr(connection, "WAIT_MILLISECONDS", 20)
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.05,))
    monkeypatch.setattr(runs, "LEAVE_SECONDS", 0.1)


@contextlib.contextmanager
def locked_database(deployment: Deployment) -> Iterator[None]:
    """Hold the write lock of the default database in another connection."""
    holder = apsw.Connection(str(deployment.folder / "main.db"))
    holder.set_busy_timeout(5_000)
    try:
        holder.execute("BEGIN IMMEDIATE")
        yield
    finally:
        holder.close(True)


@pytest.mark.usefixtures("short_lock_timeout")
async def test_disconnect_stops_the_run_despite_a_locked_database(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest("x", session_id="s1")
        leaving = asyncio.create_task(operations.runs.create("agent", "hang", request))
        run_id = (await wait_for_running(operations))["run_id"]
        live = await wait_for_live_run(service, run_id)
        with locked_database(deployment):
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            assert live.requested_end is not None
            assert (await operations.runs.get(run_id)).value["status"] == "RUNNING"
        run = await wait_for_run(operations, run_id)
        assert run["status"] == "CANCELLED"
        assert run["cancel_reason"] == "The client disconnected"
        await wait_until(lambda: service.hosting.engine.live_runs() == [])


@pytest.mark.usefixtures("short_lock_timeout")
async def test_disconnect_does_not_wait_for_a_locked_database(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STORE_WAIT_SECONDS", 0.1)
    async with open_service(deployment) as service:
        operations = user(service)
        request = {"message": '{"seconds": 200}', "session_id": "s1"}
        async with streamed_run(operations, "agent", "tool-wait", **request) as (run, events):
            await wait_for_timer(200)
            with locked_database(deployment):
                await pass_time(200)
                assert "RunCompleted" not in [event.name for event in await events]
                assert (await operations.runs.get(run["run_id"])).value["status"] == "RUNNING"
            assert (await wait_for_run(operations, run["run_id"]))["status"] == "COMPLETED"


async def test_stream_waits_for_a_busy_database(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STORE_WAIT_SECONDS", 0)
    async with open_service(deployment) as service:
        events = await collect_run_events(user(service), "agent", "echo", message="x")
        assert events[-1].name == "RunCompleted"


@pytest.mark.usefixtures("short_lock_timeout")
async def test_closing_abandons_an_end_that_cannot_be_stored(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSE_SECONDS", 0.2)
    tasks = asyncio.all_tasks()
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest("x", session_id="s1", background=True)
        await operations.runs.create("agent", "hang", request)
        await wait_for_running(operations)
        lock = contextlib.ExitStack()
        lock.enter_context(locked_database(deployment))
    lock.close()
    assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("short_lock_timeout")
async def test_a_stop_waits_once_for_an_end_that_cannot_be_stored(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSE_SECONDS", 10 * PATIENCE)
    async with open_service(deployment) as service:
        request = RunRequest("x", session_id="s1", background=True)
        await user(service).runs.create("agent", "hang", request)
        await wait_for_running(user(service))
        with locked_database(deployment):
            # As a server does: at the end of its drain, and when it ends.
            drained = asyncio.create_task(service.hosting.engine.cancel_runs())
            await pass_time(10 * PATIENCE)
            await drained
            async with asyncio.timeout(PATIENCE):
                await service.hosting.engine.close()


async def test_unencodable_content_does_not_prevent_the_end(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            live = await wait_for_live_run(service, run["run_id"])
            live.transcript.add_user("\ud800")
            await operations.runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest("s1", wait=30)
            )
            assert (await events)[-1].name == "RunCancelled"
        stored = (await operations.runs.get(run["run_id"])).value
        assert (stored["status"], stored["messages"]) == ("CANCELLED", [])


async def test_run_without_a_row_ends_and_stores_nothing(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(
            operations, "team", "crew", message="ask hang", session_id="s1"
        ) as (run, _):
            live = await wait_for_live_run(service, run["run_id"])
            await wait_until(lambda: live.children)
            await live.database.write(sessions.delete("s1"))
            live.stop(Ending.cancelled("me", "gone"))
            await wait_until(lambda: not service.hosting.engine.live_runs())
        assert (await admin(service).runs.list(RunFilter())).value["data"] == []


async def test_run_that_failed_early_keeps_its_message(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keyless = '[[models]]\nid = "keyless"\nprovider = "openai"\nmodel = "m"\n'
    keyless += '[[agents]]\nid = "keyless"\nname = "Keyless"\nmodel = "keyless"\n'
    async with open_service(
        create_deployment(tmp_path, "http://127.0.0.1:9/v1", extra=keyless)
    ) as service:
        operations = user(service)
        run = (await operations.runs.create("agent", "keyless", RunRequest("why?", "s1"))).value
        assert run["error"] is not None
        assert run["error"]["code"] == "MODEL_UNAVAILABLE"
        history = (await operations.sessions.get("s1")).value["chat_history"] or []
        assert [(entry["role"], entry["content"]) for entry in history] == [("user", "why?")]


async def test_last_event_names_the_first_cancel(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two requests is recorded, even if the owner receives the second first."""
    is_recorded = asyncio.Event()
    store_end = supervision.store_end

    async def store_after_the_request(*arguments: Any) -> Ending:
        await is_recorded.wait()
        return await store_end(*arguments)

    monkeypatch.setattr(supervision, "store_end", store_after_the_request)
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            live = await wait_for_live_run(service, run["run_id"])
            live.stop(Ending.cancelled("you", "second"))
            request = CancelRequest("s1", wait=30, reason="first")
            cancel = asyncio.create_task(
                operations.runs.cancel("agent", "hang", run["run_id"], request)
            )

            async def is_requested() -> bool:
                record = (await operations.runs.get(run["run_id"])).value
                return record["cancel_requested_by"] == "me"

            await wait_until(is_requested)
            is_recorded.set()
            answer = await cancel
            last = event_data((await events)[-1])
        assert last["reason"] == answer.value["reason"] == "first"


async def test_closing_waits_for_starting_runs(deployment: Deployment) -> None:
    for pause in range(10):
        async with open_service(deployment) as service:
            operations = user(service)
            request = RunRequest("x", session_id="s1", background=True)
            beginning = asyncio.create_task(operations.runs.create("agent", "hang", request))
            for _ in range(pause):
                await asyncio.sleep(0)
        await asyncio.gather(beginning, return_exceptions=True)
    async with open_service(deployment) as service:
        found = (await admin(service).runs.list(RunFilter())).value["data"]
    assert found
    assert {(run["status"], run["cancel_requested_by"]) for run in found} == {
        ("CANCELLED", "system:shutdown")
    }


@pytest.mark.parametrize("pause", range(0, 12, 2))
async def test_detached_run_continues_from_its_start(
    tmp_path: Path, model_endpoint: ModelEndpoint, pause: int
) -> None:
    deployment = create_deployment(
        tmp_path, model_endpoint.base_url, server='on_disconnect = "detach"'
    )
    async with open_service(deployment) as service:
        operations = user(service)
        leaving = asyncio.create_task(
            operations.runs.create("agent", "echo", RunRequest("x", "s1"))
        )
        for _ in range(pause):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await service.drain()
        found = (await operations.runs.list(RunFilter())).value["data"]
        assert {run["status"] for run in found} <= {"COMPLETED"}


async def test_unread_cancel_request_is_read_later(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "RETRY_SECONDS", 0.05)
    async with open_service(deployment) as owner, open_service(deployment) as elsewhere:
        operations = user(owner)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            live = await wait_for_live_run(owner, run["run_id"])
            await wait_until(lambda: live.transcript.messages)
            database = live.database
            read = database.read
            refused = asyncio.Event()

            async def unreadable(*_: Any, **__: Any) -> Any:
                refused.set()
                raise errors.InternalError

            database.read = unreadable  # type: ignore[method-assign]
            request = CancelRequest(reason="from afar", wait=0)
            await admin(elsewhere).runs.cancel("agent", "hang", run["run_id"], request)
            await asyncio.wait_for(refused.wait(), PATIENCE)
            database.read = read  # type: ignore[method-assign]
            assert event_data((await events)[-1])["reason"] == "from afar"


WORK: list[tuple[ComponentKind, str, str]] = [
    ("agent", "echo", "x"),
    ("agent", "hang", "x"),
    ("agent", "trickle", "x"),
    ("agent", "tool-wait", '{"seconds": 0.05}'),
    ("agent", "tool-stubborn", '{"seconds": 0.4}'),
    ("team", "crew", "ask hang"),
    ("team", "jam", "x"),
    ("team", "choir", "x"),
    ("workflow", "line", "x"),
    ("workflow", "stuck", "x"),
]


@contextlib.asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Check that no task is left and that none failed unnoticed."""
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    complaints = list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await wait_until(lambda: asyncio.all_tasks() == before)
    assert complaints == []


async def _run_randomly(operations: ServiceOperations, chance: random.Random, number: int) -> None:
    """Start a run and finish, leave, cancel or delete it at a random moment."""
    kind, component, message = chance.choice(WORK)
    session = f"{kind}-{number % 7}"
    request = {"message": message, "session_id": session}
    fate = chance.choice(["leave", "cancel", "background", "delete"])
    task: asyncio.Task[Any] = asyncio.create_task(
        operations.runs.create(kind, component, RunRequest(message, session, background=True))
        if fate == "background"
        else collect_run_events(operations, kind, component, **request)
    )
    await asyncio.sleep(chance.random() * 0.2)
    with contextlib.suppress(errors.NotFound, errors.Conflict):
        if fate == "delete":
            await operations.sessions.delete(session, cancel=True)
        elif fate == "cancel":
            for run in (await operations.sessions.list_runs(session)).value:
                owner = kind
                if "agent_id" in run:
                    owner = "agent"
                elif "team_id" in run:
                    owner = "team"
                name = run.get(f"{owner}_id", component)
                await operations.runs.cancel(
                    owner, str(name), run["run_id"], CancelRequest(session)
                )
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_all_runs_end_under_random_failures(deployment: Deployment) -> None:
    chance = random.Random(7)
    async with no_task_left():
        async with open_service(deployment) as service:
            operations = service.operations_for(local_principal("boss"))
            await asyncio.gather(
                *(_run_randomly(operations, chance, number) for number in range(80))
            )
        async with open_service(deployment) as service:
            for status in ("PENDING", "RUNNING"):
                left = await admin(service).runs.list(RunFilter(status=status))
                assert left.value["data"] == []


@pytest.mark.parametrize(
    ("ending", "status"),
    [(Ending.failed("INTERNAL", "gone"), "failed"), (Ending.cancelled("me", None), "cancelled")],
)
async def test_open_spans_end_as_their_run_does(
    deployment: Deployment, ending: Ending, status: str
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            live = await wait_for_live_run(service, run["run_id"])
            live.transcript.spans.start_tool_call("c1", "open")
            live.stop(ending)
            await events
        record: Any = (await operations.runs.get(run["run_id"])).value
        (span,) = [span for span in record["spans"] if span["id"] == "c1"]
        assert span["status"] == status
        assert span["finished_at"] <= record["finished_at"]


async def test_nothing_is_published_while_an_end_is_stored(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = finish._store_or_read_end

    async def publish(run: LiveRun, ending: Ending, end: Any) -> Ending:
        run.stream.publish("RunContent", b'{"content": "late"}')
        stored = await store(run, ending, end)
        run.stream.publish("RunContent", b'{"content": "late"}')
        return stored

    monkeypatch.setattr(finish, "_store_or_read_end", publish)
    async with open_service(deployment) as service:
        operations = user(service)
        sent = await collect_run_events(operations, "agent", "echo", message="x", session_id="s1")
        assert sent[-1].name == "RunCompleted"
        assert all(event_data(event).get("content") != "late" for event in sent)
        run_id = event_data(sent[0])["run_id"]
        rows = await service.hosting.databases.system.read(event_store.list_after(run_id, -1))
        stored = [event for row in rows for event in decode_events(row)]
        assert [(each.seq, each.name) for each in stored] == [
            (each.seq, each.name) for each in sent
        ]


async def test_end_waits_for_the_write_in_progress(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_held = asyncio.Event()
    held = asyncio.Event()
    append = stream._EventWriter.append

    async def hold(*arguments: Any) -> bool:
        held.set()
        await is_held.wait()
        return await append(*arguments)

    monkeypatch.setattr(stream._EventWriter, "append", hold)
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            live = await wait_for_live_run(service, run["run_id"])
            await asyncio.wait_for(held.wait(), PATIENCE)
            live.stop(Ending.cancelled("me", None))
            stream_recorder = live.stream_recorder
            assert stream_recorder is not None
            await wait_until(lambda: stream_recorder._ended)
            assert (await operations.runs.get(run["run_id"])).value["status"] == "RUNNING"
            is_held.set()
            assert [event.seq for event in await events] == [*range(len(await events))]


async def test_followers_of_a_run_that_another_process_has_ended_read_its_events(
    deployment: Deployment,
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            live = await wait_for_live_run(service, run["run_id"])
            # The follower has the first event before it is stored.
            stored = event_store.list_after(run["run_id"], -1)
            await wait_until(lambda: live.database.read(stored))
            assert await recover_runs(live.database, live.worker_id) == [run["run_id"]]
            live.stop(Ending.cancelled("me", None))
            sent = await events
        # The process that has written the end counts it.
        assert not service.hosting.engine.counters.finished
        rows = await live.database.read(event_store.list_after(run["run_id"], -1))
        assert sent == [event for row in rows for event in decode_events(row)]
        assert sent[-1].name == "RunError"
