"""`on_busy = "steer"`: the request for a run of a busy session is a message to the run."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, RunFilter, RunRequest
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.records.kinds import ComponentKind
from agentctl.runs.engine import changes
from agentctl.service.service import ServiceOperations
from agentctl.store.database import Sql
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user
from tests.steering.stepping_models import SteppingModels
from tests.steering.test_messages import read_fate, start, wait_for_requests

_AUDIT = Sql("SELECT operation, resource FROM audit_log WHERE outcome = 'allowed' ORDER BY at")

_CANCEL = Sql("UPDATE runs SET cancel_requested_at = 1 WHERE run_id = :run_id")


def ask(
    operations: ServiceOperations,
    message: str,
    component: str = "steered",
    kind: ComponentKind = "agent",
    **options: Any,
) -> asyncio.Task[Any]:
    """Start a run of the session in a task; its result is the record."""

    async def create() -> Any:
        request = RunRequest(message, session_id="s1", **options)
        return (await operations.runs.create(kind, component, request)).value

    return asyncio.create_task(create())


def stream(
    operations: ServiceOperations, message: str, component: str = "steered"
) -> asyncio.Task[list[tuple[str, Any]]]:
    """Stream a run of the session in a task; its result are the names and data of the events."""

    async def collect() -> list[tuple[str, Any]]:
        events = operations.runs.stream("agent", component, RunRequest(message, session_id="s1"))
        return [(event.name, json.loads(event.data)) async for event in events]

    return asyncio.create_task(collect())


async def wait_for_messages(operations: ServiceOperations, run_id: str, count: int) -> None:
    async def has_all() -> bool:
        return (await operations.runs.list_messages(run_id)).value["total"] >= count

    await wait_until(has_all)


@pytest.mark.parametrize(
    ("kind", "component"),
    [
        ("agent", "steered"),
        ("agent", "steered-durable"),
        ("agent", "steered-typed"),
        ("agent", "steered-listener"),
        pytest.param("agent", "steered-graph", marks=pytest.mark.doors),
        ("team", "steered-office"),
    ],
)
async def test_request_becomes_a_message_of_the_run_that_works(
    site: Deployment, models: SteppingModels, kind: ComponentKind, component: str
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        first = ask(operations, "work 2 a", component, kind)
        await wait_for_requests(models, 1)
        second = await ask(operations, "only primes", component, kind, background=True)
        assert second["status"] == "RUNNING"
        assert second["sent_message"]["status"] == "waiting"
        run_id = second["run_id"]
        third = ask(operations, "and odd", component, kind)
        await wait_for_messages(operations, run_id, 2)
        models.let_go()

        record = await first
        assert record["run_id"] == run_id
        assert record["content"] == "done after work 2 a | only primes | and odd"
        assert "sent_message" not in record
        steered = await third
        message = steered.pop("sent_message")
        assert steered == (await operations.runs.get(run_id)).value
        assert (message["status"], message["content"]) == ("delivered", "and odd")
        assert message["run_id"] == run_id
        runs = (await operations.runs.list(RunFilter(session_id="s1"))).value["data"]
        assert [run["run_id"] for run in runs if not run["parent_run_id"]] == [run_id]


def list_names(events: Sequence[tuple[str, Any]]) -> list[str]:
    """Return the names of events. A text that comes in several parts counts once."""
    return [name for name, _ in itertools.groupby(name for name, _ in events)]


async def test_stream_of_a_message_begins_with_its_delivery(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 2 a", "steered")
        await wait_for_requests(models, 1)
        answer = stream(operations, "only primes")
        await wait_for_messages(operations, run_id, 1)
        models.let_go()

        events = await answer
        assert {data["run_id"] for _, data in events} == {run_id}
        assert list_names(events) == [
            "MessageDelivered",
            "ToolCallStarted",
            "ToolCallCompleted",
            "RunContent",
            "RunCompleted",
        ]
        assert events[0][1]["content"] == "only primes"


async def test_stream_of_a_message_to_a_run_without_stored_events_has_its_end(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        first = ask(operations, "work 1 a")
        await wait_for_requests(models, 1)
        answer = stream(operations, "only primes")
        runs = (await operations.runs.list(RunFilter(session_id="s1"))).value["data"]
        await wait_for_messages(operations, runs[0]["run_id"], 1)
        models.let_go()

        record = await first
        events = await answer
        assert list_names(events) == ["RunContent", "RunCompleted"]
        assert events[-1][1]["content"] == record["content"]


async def test_message_that_comes_too_late_is_answered_by_its_own_run(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 0 a", "steered")
        await wait_for_requests(models, 1)
        record = ask(operations, "one more thing")
        await wait_for_messages(operations, run_id, 1)
        events = stream(operations, "and another one")
        await wait_for_messages(operations, run_id, 2)
        models.let_go()

        own = await record
        message = own["sent_message"]
        assert (message["status"], message["run_id"]) == ("next_run", run_id)
        assert message["next_run_id"] == own["run_id"] != run_id
        assert (own["status"], own["input"]) == ("COMPLETED", "one more thing")

        assert list_names(await events) == ["RunQueued", "RunStarted", "RunContent", "RunCompleted"]
        last = (await events)[-1][1]
        assert last["run_id"] not in (run_id, own["run_id"])


async def test_request_of_an_idle_session_begins(site: Deployment, models: SteppingModels) -> None:
    async with open_service(site) as service:
        operations = user(service)
        record = await ask(operations, "work 0 a")
        assert (record["status"], record["content"]) == ("COMPLETED", "done after work 0 a")
        assert "sent_message" not in record


@pytest.mark.parametrize(
    ("kind", "component", "options"),
    [
        ("workflow", "steered-lane", {}),
        ("agent", "steered", {"metadata": {"from": "a form"}}),
        ("agent", "steered", {"session_state": {"a": 1}}),
        ("agent", "steered", {"session_history": False}),
        ("agent", "steered", {"stop": ("end",)}),
    ],
)
async def test_request_that_is_no_message_waits_in_the_queue(
    site: Deployment,
    models: SteppingModels,
    kind: ComponentKind,
    component: str,
    options: dict[str, Any],
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        await start(operations, "work 1 a", component, kind)
        await wait_for_requests(models, 1)
        queued = await ask(operations, "next", component, kind, background=True, **options)
        assert (queued["status"], queued["queue_position"]) == ("PENDING", 1)
        assert "sent_message" not in queued
        models.let_go()
        assert (await wait_for_run(operations, queued["run_id"]))["status"] == "COMPLETED"


async def test_request_with_the_stored_state_is_a_message(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        first = await ask(operations, "work 1 a", background=True, session_state={"a": 1, "b": 2})
        await wait_for_requests(models, 1)
        sent = await ask(operations, "next", background=True, session_state={"a": 1})
        assert sent["run_id"] == first["run_id"]
        models.let_go()
        await wait_for_run(operations, first["run_id"])


async def test_run_of_another_agent_gets_no_message(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        await start(operations, "work 1 a", "worker")
        await wait_for_requests(models, 1)
        queued = await ask(operations, "next", background=True)
        assert (queued["status"], queued["agent_id"]) == ("PENDING", "steered")
        models.let_go()
        assert (await wait_for_run(operations, queued["run_id"]))["status"] == "COMPLETED"


async def test_session_of_another_user_is_not_found(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        run_id = await start(user(service), "work 1 a", "steered")
        await wait_for_requests(models, 1)
        with pytest.raises(errors.NotFound):
            await ask(user(service, "somebody"), "hello")
        assert (await user(service).runs.list_messages(run_id)).value["total"] == 0
        models.let_go()


async def test_repeated_request_returns_the_run_of_its_message(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", "steered")
        await wait_for_requests(models, 1)
        keyed = {"background": True, "idempotency_key": "k"}
        first = await ask(operations, "once", **keyed)
        assert (await ask(operations, "once", **keyed)) == first
        with pytest.raises(errors.ValidationFailed):
            await ask(operations, "twice", **keyed)
        assert (await operations.runs.list_messages(run_id)).value["total"] == 1
        models.let_go()
        await wait_for_run(operations, run_id)

        again = await ask(operations, "once", **keyed)
        assert (again["run_id"], again["status"]) == (run_id, "COMPLETED")
        assert again["sent_message"]["status"] == "delivered"

        entries = await service.hosting.databases.system.read(_AUDIT.rows(lambda *row: row))
        message_id = first["sent_message"]["message_id"]
        place = f"agent:steered,run:{run_id},session:s1,message:{message_id}"
        assert entries[1:] == [("create_agent_run", place)]


async def test_cancelled_run_takes_no_message_with_it_that_comes_later(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 3 a", "steered")
        await wait_for_requests(models, 1)
        waiting = stream(operations, "stop that")
        refused = ask(operations, "stop it")
        await wait_for_messages(operations, run_id, 2)
        await operations.runs.cancel("agent", "steered", run_id, CancelRequest("s1"))

        record = await refused
        assert (record["run_id"], record["status"]) == (run_id, "CANCELLED")
        assert record["sent_message"]["reason"] == "The run was cancelled"
        assert [name for name, _ in await waiting] == ["RunCancelled"]

        models.let_go()
        later = await ask(operations, "work 0 b")
        assert (later["status"], later["content"]) == ("COMPLETED", "done after work 0 b")


async def test_message_to_a_paused_run_waits_with_it(
    site: Deployment, models: SteppingModels
) -> None:
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", "steered-asking")
        paused = await wait_for_run(operations, run_id, "PAUSED")
        record = await ask(operations, "be quick", "steered-asking")
        assert (record["run_id"], record["status"]) == (run_id, "PAUSED")
        assert record["sent_message"]["status"] == "waiting"
        assert [name for name, _ in await stream(operations, "now", "steered-asking")] == [
            "RunPaused"
        ]

        (asked,) = paused["approvals"]
        ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
        await operations.runs.continue_run(
            "agent", "steered-asking", run_id, ContinueRequest((ruling,))
        )
        run = await wait_for_run(operations, run_id)
        assert run["content"] == "done after work 1 a | be quick | now"


async def test_caller_that_leaves_stops_neither_run_nor_message(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", "steered")
        await wait_for_requests(models, 1)
        asking = ask(operations, "only primes")
        await wait_for_messages(operations, run_id, 1)
        asking.cancel()
        await asyncio.wait({asking})
        models.let_go()
        run = await wait_for_run(operations, run_id)
        assert run["content"] == "done after work 1 a | only primes"


@pytest.mark.parametrize(
    "component", ["steered", pytest.param("steered-graph", marks=pytest.mark.doors)]
)
async def test_message_goes_to_the_run_that_waits_longest_behind(
    site: Deployment, models: SteppingModels, component: str
) -> None:
    """A request stays behind an earlier one that waits in the queue."""
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        await start(operations, "work 1 a", component)
        await wait_for_requests(models, 1)
        form = {"background": True, "metadata": {"form": 1}}
        queued = await ask(operations, "work 1 b", component, **form)
        sent = await ask(operations, "after b", component, background=True)
        assert sent["run_id"] == queued["run_id"]
        message_id = sent["sent_message"]["message_id"]
        models.let_go()
        fate = await read_fate(operations, queued["run_id"], message_id)
        assert (fate["status"], fate["model_call_id"]) == ("delivered", "model-1")
        run = await wait_for_run(operations, queued["run_id"])
        assert run["content"] == "done after work 1 b | after b"


async def test_cancel_at_the_same_moment_lets_the_request_be_the_next_run(
    site: Deployment, models: SteppingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 3 a", "steered")
        await wait_for_requests(models, 1)
        database = service.hosting.databases.system
        find = operations.runs._find_busy_run
        read_requests = changes._read_requests
        answered = asyncio.Event()

        async def read_later(*place: Any) -> None:
            # Or the run would end before the message is stored.
            await answered.wait()
            await read_requests(*place)

        monkeypatch.setattr(changes, "_read_requests", read_later)

        async def find_and_cancel(*place: Any) -> Any:
            found = await find(*place)
            await database.write(_CANCEL.execute(run_id=run_id))
            return found

        monkeypatch.setattr(operations.runs, "_find_busy_run", find_and_cancel)
        sent = await ask(operations, "work 0 b", background=True)
        message = sent["sent_message"]
        assert (message["status"], message["reason"]) == ("next_run", "The run is being cancelled")
        answered.set()
        models.let_go()
        assert (await wait_for_run(operations, sent["run_id"]))["status"] == "COMPLETED"
