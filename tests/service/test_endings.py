"""Every run that began ends, and its end is stored, whatever is in the way."""

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
from agentctl.operations import CancelRequest, RunFilter, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.runs import changes, engine, finish, supervision
from agentctl.runs.live import LiveRun
from agentctl.runs.states import Ending
from agentctl.service import runs
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import sessions
from agentctl.store.sqlite import connection
from tests.deployment import Deployment, create_deployment
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.service.doors import boss, collect, data, hosted, running, started, user


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that gives up on a lock at once, and is asked again soon."""
    monkeypatch.setattr(connection, "WAIT_MILLISECONDS", 20)
    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.05,))
    monkeypatch.setattr(runs, "DISCONNECT_WAIT_SECONDS", 0.1)


@contextlib.contextmanager
def locked(deployment: Deployment) -> Iterator[None]:
    """Another program holds the write lock of the default database."""
    holder = apsw.Connection(str(deployment.folder / "main.db"))
    holder.set_busy_timeout(5_000)
    try:
        holder.execute("BEGIN IMMEDIATE")
        yield
    finally:
        holder.close(True)


async def ended(port: ServiceOperations, run_id: str) -> dict[str, Any]:
    """The run, once it is final."""
    run: dict[str, Any] = {}

    async def final() -> bool:
        run.update((await port.get_run(run_id)).value)
        return run["status"] not in ("PENDING", "RUNNING")

    await wait_until(final)
    return run


def live_run(service: Service, run_id: str) -> LiveRun:
    run = service.hosting.engine.find_run(run_id)
    assert run is not None
    return run


@pytest.mark.usefixtures("impatient")
async def test_a_caller_that_leaves_while_the_database_is_locked_still_stops_its_run(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        request = RunRequest("x", session_id="s1")
        leaving = asyncio.create_task(port.create_run("agent", "hang", request))
        run_id = (await running(port))["run_id"]
        live = live_run(service, run_id)
        with locked(deployment):
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            assert live.requested_end is not None
            assert (await port.get_run(run_id)).value["status"] == "RUNNING"
        run = await ended(port, run_id)
        assert run["status"] == "CANCELLED"
        assert run["cancel_reason"] == "The client disconnected"
        await wait_until(lambda: service.hosting.engine.live_runs() == [])


@pytest.mark.usefixtures("impatient")
async def test_a_caller_is_not_held_for_as_long_as_an_end_cannot_be_stored(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STORE_WAIT_SECONDS", 0.1)
    async with hosted(deployment) as service:
        port = user(service)
        request = {"message": '{"seconds": 0.2}', "session_id": "s1"}
        async with started(port, "agent", "tool-wait", **request) as (run, events):
            with locked(deployment):
                assert "RunCompleted" not in [event.name for event in await events]
                assert (await port.get_run(run["run_id"])).value["status"] == "RUNNING"
            assert (await ended(port, run["run_id"]))["status"] == "COMPLETED"


@pytest.mark.usefixtures("impatient")
async def test_an_end_that_is_never_taken_is_given_up_when_the_service_closes(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CLOSE_SECONDS", 0.2)
    tasks = asyncio.all_tasks()
    async with hosted(deployment) as service:
        port = user(service)
        request = RunRequest("x", session_id="s1", background=True)
        await port.create_run("agent", "hang", request)
        await running(port)
        lock = contextlib.ExitStack()
        lock.enter_context(locked(deployment))
    lock.close()
    assert asyncio.all_tasks() == tasks


async def test_what_cannot_be_encoded_does_not_keep_a_run_from_ending(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, events):
            live_run(service, run["run_id"]).transcript.add_user("\ud800")
            await port.cancel_run("agent", "hang", run["run_id"], CancelRequest("s1"))
            assert (await events)[-1].name == "RunCancelled"
        stored = (await port.get_run(run["run_id"])).value
        assert (stored["status"], stored["messages"]) == ("CANCELLED", [])


async def test_a_run_whose_row_is_gone_ends_and_leaves_nothing(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "team", "crew", message="ask hang", session_id="s1") as (run, _):
            live = live_run(service, run["run_id"])
            await wait_until(lambda: live.children)
            await live.spec.database.write(sessions.delete("s1"))
            live.stop(Ending.cancelled("me", "gone"))
            await wait_until(lambda: not service.hosting.engine.live_runs())
        assert (await boss(service).get_runs(RunFilter())).value["data"] == []


async def test_a_run_that_failed_before_its_model_was_asked_keeps_its_question(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keyless = '[[models]]\nid = "keyless"\nprovider = "openai"\nmodel = "m"\n'
    keyless += '[[agents]]\nid = "keyless"\nname = "Keyless"\nmodel = "keyless"\n'
    async with hosted(
        create_deployment(tmp_path, "http://127.0.0.1:9/v1", extra=keyless)
    ) as service:
        port = user(service)
        run = (await port.create_run("agent", "keyless", RunRequest("why?", "s1"))).value
        assert run["error"] is not None
        assert run["error"]["code"] == "MODEL_UNAVAILABLE"
        history = (await port.get_session_by_id("s1")).value["chat_history"] or []
        assert [(entry["role"], entry["content"]) for entry in history] == [("user", "why?")]


async def test_the_event_tells_the_request_that_counts(deployment: Deployment) -> None:
    """Of two requests the first is recorded, also when the owner has heard of the second first."""
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, events):
            live_run(service, run["run_id"]).stop(Ending.cancelled("you", "second"))
            request = CancelRequest("s1", reason="first")
            answer = await port.cancel_run("agent", "hang", run["run_id"], request)
            last = data((await events)[-1])
        assert last["reason"] == answer.value["reason"] == "first"


async def test_closing_waits_for_runs_that_are_about_to_begin(deployment: Deployment) -> None:
    for pause in range(10):
        async with hosted(deployment) as service:
            port = user(service)
            request = RunRequest("x", session_id="s1", background=True)
            beginning = asyncio.create_task(port.create_run("agent", "hang", request))
            for _ in range(pause):
                await asyncio.sleep(0)
        await asyncio.gather(beginning, return_exceptions=True)
    async with hosted(deployment) as service:
        found = (await boss(service).get_runs(RunFilter())).value["data"]
    assert found
    assert {(run["status"], run["cancel_requested_by"]) for run in found} == {
        ("CANCELLED", "system:shutdown")
    }


@pytest.mark.parametrize("pause", range(0, 12, 2))
async def test_a_run_that_goes_on_does_so_from_its_beginning(
    tmp_path: Path, model_endpoint: ModelEndpoint, pause: int
) -> None:
    deployment = create_deployment(
        tmp_path, model_endpoint.base_url, server='on_disconnect = "detach"'
    )
    async with hosted(deployment) as service:
        port = user(service)
        leaving = asyncio.create_task(port.create_run("agent", "echo", RunRequest("x", "s1")))
        for _ in range(pause):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await service.drain()
        found = (await port.get_runs(RunFilter())).value["data"]
        assert {run["status"] for run in found} <= {"COMPLETED"}


async def test_a_request_that_could_not_be_read_is_heard_of_later(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "RETRY_SECONDS", 0.05)
    async with hosted(deployment) as owner, hosted(deployment) as elsewhere:
        port = user(owner)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, events):
            live = live_run(owner, run["run_id"])
            await wait_until(lambda: live.transcript.messages)
            database = live.spec.database
            read, refused = database.read, asyncio.Event()

            async def unreadable(*_: Any, **__: Any) -> Any:
                refused.set()
                raise errors.InternalError

            database.read = unreadable  # type: ignore[method-assign]
            request = CancelRequest(reason="from afar", wait=0)
            await boss(elsewhere).cancel_run("agent", "hang", run["run_id"], request)
            await asyncio.wait_for(refused.wait(), 5)
            database.read = read  # type: ignore[method-assign]
            assert data((await events)[-1])["reason"] == "from afar"


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
async def nothing_complains() -> AsyncIterator[None]:
    """No task that was started is left, and none failed unseen."""
    loop = asyncio.get_running_loop()
    before, complaints = asyncio.all_tasks(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await wait_until(lambda: asyncio.all_tasks() == before)
    assert complaints == []


async def _one(port: ServiceOperations, chance: random.Random, number: int) -> None:
    """A run that is left to itself, left by its caller, cancelled, or deleted, at some moment."""
    kind, component, message = chance.choice(WORK)
    session = f"{kind}-{number % 7}"
    request = {"message": message, "session_id": session}
    fate = chance.choice(["leave", "cancel", "background", "delete"])
    task: asyncio.Task[Any] = asyncio.create_task(
        port.create_run(kind, component, RunRequest(message, session, background=True))
        if fate == "background"
        else collect(port, kind, component, **request)
    )
    await asyncio.sleep(chance.random() * 0.2)
    with contextlib.suppress(errors.NotFound, errors.Conflict):
        if fate == "delete":
            await port.delete_session(session, cancel=True)
        elif fate == "cancel":
            for run in (await port.get_session_runs(session)).value:
                owner: ComponentKind = (
                    "agent" if "agent_id" in run else "team" if "team_id" in run else kind
                )
                name = run.get(f"{owner}_id", component)
                await port.cancel_run(owner, str(name), run["run_id"], CancelRequest(session))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_whatever_happens_to_them_all_runs_end(deployment: Deployment) -> None:
    chance = random.Random(7)
    async with nothing_complains():
        async with hosted(deployment) as service:
            port = service.operations_for(local_principal("boss"))
            await asyncio.gather(*(_one(port, chance, number) for number in range(80)))
        async with hosted(deployment) as service:
            for status in ("PENDING", "RUNNING"):
                left = await boss(service).get_runs(RunFilter(status=status))
                assert left.value["data"] == []
