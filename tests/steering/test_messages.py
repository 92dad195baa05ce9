"""Messages to runs that work, on the local backend: each has one fate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.interface.requests import CancelRequest, MessageRequest, RunFilter, RunRequest
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.records.kinds import ComponentKind
from agentctl.runtime.failures import ExecutionError
from agentctl.service.service import ServiceOperations
from agentctl.store.database import Sql
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user
from tests.runs.simulated_processes import Process, create_process_task
from tests.steering.stepping_models import SteppingModels

_AUDIT = Sql("SELECT outcome, resource FROM audit_log WHERE operation = 'send_message' ORDER BY at")


async def start(
    operations: ServiceOperations,
    message: str,
    component: str = "worker",
    kind: ComponentKind = "agent",
) -> str:
    request = RunRequest(message, session_id="s1", background=True)
    run = (await operations.runs.create(kind, component, request)).value
    return str(run["run_id"])


async def send(operations: ServiceOperations, run_id: str, text: str, **options: Any) -> Any:
    return (await operations.runs.send_message(run_id, MessageRequest(text, **options))).value


async def read_fate(operations: ServiceOperations, run_id: str, message_id: str) -> Any:
    """Wait until a message has its fate; return its record."""

    async def look() -> Any:
        listed = (await operations.runs.list_messages(run_id)).value["messages"]
        found = [message for message in listed if message["message_id"] == message_id]
        return found[0] if found[0]["status"] != "waiting" else None

    return await wait_until(look)


async def wait_for_requests(models: SteppingModels, count: int) -> None:
    await wait_until(lambda: asyncio.sleep(0, len(models.requests) >= count))


@pytest.mark.parametrize(
    ("kind", "component"),
    [
        ("agent", "worker"),
        ("agent", "durable"),
        ("agent", "typed"),
        pytest.param("agent", "graph", marks=pytest.mark.doors),
        pytest.param("agent", "keeping-graph", marks=pytest.mark.doors),
        ("team", "office"),
    ],
)
async def test_next_model_call_gets_the_message_after_the_results(
    site: Deployment, models: SteppingModels, kind: ComponentKind, component: str
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 2 a", component, kind)
        await wait_for_requests(models, 1)

        sent = await send(operations, run_id, "only primes")
        assert (sent["status"], sent["run_id"]) == ("waiting", run_id)
        models.let_go()

        run = await wait_for_run(operations, run_id)
        assert run["content"] == "done after work 2 a | only primes"

        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("delivered", "model-2")

        roles = [message["role"] for message in run["messages"] if message["role"] != "system"]
        assert roles == ["user", "assistant", "tool", "user", "assistant", "tool", "assistant"]
        marked = [message for message in run["messages"] if "message_id" in message]
        assert [message["message_id"] for message in marked] == [sent["message_id"]]
        assert [len(request.texts) for request in models.requests] == [1, 2, 2]
        call = (await operations.runs.get_model_call(run_id, "model-2")).value
        assert call["messages"][-1]["content"] == "only primes"


@pytest.mark.parametrize(
    "component",
    [
        "worker",
        "typed",
        pytest.param("graph", marks=pytest.mark.doors),
        pytest.param("keeping-graph", marks=pytest.mark.doors),
    ],
)
async def test_later_run_of_the_session_has_the_message_once(
    site: Deployment, models: SteppingModels, component: str
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", component)
        await wait_for_requests(models, 1)
        await send(operations, run_id, "only primes")
        models.let_go()
        await wait_for_run(operations, run_id)

        later = await wait_for_run(operations, await start(operations, "and now?", component))
        assert later["status"] == "COMPLETED"
        assert models.requests[-1].texts == ["work 1 a", "only primes", "and now?"]


@pytest.mark.parametrize("component", ["listener", "durable-listener"])
async def test_function_takes_its_messages(
    site: Deployment, models: SteppingModels, component: str
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 2", component)
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "only primes")
        models.release()
        await wait_for_requests(models, 2)
        late = await send(operations, run_id, "and now?", late="refuse")
        models.let_go()

        run = await wait_for_run(operations, run_id)
        assert run["content"] == "done after work 2 | only primes | and now?"
        assert [m["message_id"] for m in run["messages"] if "message_id" in m] == [
            sent["message_id"],
            late["message_id"],
        ]
        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("delivered", None)


async def test_message_after_the_last_model_call_becomes_the_next_run(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 0 a")
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "one more thing")
        refused = await send(operations, run_id, "never mind", late="refuse")
        models.let_go()

        await wait_for_run(operations, run_id)
        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["next_run_id"]) == ("next_run", sent["message_id"])
        next_run = await wait_for_run(operations, fate["next_run_id"])
        assert (next_run["status"], next_run["input"]) == ("COMPLETED", "one more thing")
        assert next_run["session_id"] == "s1"

        fate = await read_fate(operations, run_id, refused["message_id"])
        assert (fate["status"], fate["next_run_id"]) == ("refused", None)
        assert fate["reason"] == "The run had made its last model call"


async def test_message_to_an_ended_run_becomes_a_run_at_once(site: Deployment) -> None:
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 0 a")
        await wait_for_run(operations, run_id)

        sent = await send(operations, run_id, "and now?")
        assert sent["status"] == "next_run"
        assert sent["reason"] == "The run had ended as COMPLETED"
        run = await wait_for_run(operations, sent["next_run_id"])
        assert run["input"] == "and now?"

        with pytest.raises(errors.Conflict, match="The run had ended as COMPLETED"):
            await send(operations, run_id, "and now?", late="refuse")


async def test_cancelled_run_refuses_what_waits(site: Deployment, models: SteppingModels) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 3 a")
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "stop that")
        await operations.runs.cancel("agent", "worker", run_id, CancelRequest("s1"))

        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["reason"]) == ("refused", "The run was cancelled")
        listed = (await operations.runs.list(RunFilter(session_id="s1"))).value["data"]
        assert [run["run_id"] for run in listed] == [run_id]


@pytest.mark.parametrize(
    ("kind", "component", "reason"),
    [
        ("workflow", "lane", "A workflow takes no messages while it works"),
        pytest.param(
            "agent",
            "listing-graph",
            "A graph without messages (add_messages) in its state takes no messages while it works",
            marks=pytest.mark.doors,
        ),
    ],
)
async def test_message_is_queued_with_the_reason(
    site: Deployment, models: SteppingModels, kind: ComponentKind, component: str, reason: str
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", component, kind)
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "work 0 b")
        assert (sent["status"], sent["reason"]) == ("next_run", reason)
        queued = (await operations.runs.get(sent["next_run_id"])).value
        assert (queued["status"], queued["queue_position"]) == ("PENDING", 1)
        models.let_go()
        assert (await wait_for_run(operations, run_id))["status"] == "COMPLETED"
        assert (await wait_for_run(operations, sent["next_run_id"]))["status"] == "COMPLETED"


async def test_message_to_a_run_of_another_process_is_delivered(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service, open_service(site) as other:
        await service.prepare()
        run_id = await start(user(service), "work 2 a")
        await wait_for_requests(models, 1)
        sent = await send(user(other), run_id, "from elsewhere")
        live = service.hosting.engine.find_run(run_id)
        assert live is not None
        await wait_until(lambda: live.has_messages)
        models.let_go()

        run = await wait_for_run(user(service), run_id)
        assert run["content"] == "done after work 2 a | from elsewhere"
        fate = await read_fate(user(other), run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("delivered", "model-2")


@pytest.mark.parametrize(
    "component",
    [
        "asking",
        pytest.param("asking-graph", marks=pytest.mark.doors),
        pytest.param("asking-keeping-graph", marks=pytest.mark.doors),
    ],
)
async def test_message_to_a_paused_run_is_delivered_when_it_goes_on(
    site: Deployment, models: SteppingModels, component: str
) -> None:
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", component)
        run = await wait_for_run(operations, run_id, "PAUSED")
        sent = await send(operations, run_id, "be quick")
        assert sent["status"] == "waiting"

        (asked,) = run["approvals"]
        ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
        await operations.runs.continue_run("agent", component, run_id, ContinueRequest((ruling,)))
        run = await wait_for_run(operations, run_id)
        assert run["content"] == "done after work 1 a | be quick"
        assert (await read_fate(operations, run_id, sent["message_id"]))["status"] == "delivered"


@pytest.mark.parametrize(
    "component",
    ["durable", "durable-typed", pytest.param("durable-graph", marks=pytest.mark.doors)],
)
async def test_durable_run_that_lost_its_process_gets_the_message_once(
    site: Deployment, models: SteppingModels, component: str
) -> None:
    asyncio.get_running_loop().set_task_factory(create_process_task)
    models.hold()
    first = Process(site.settings)
    await first.run(first.open())
    run_id = await first.run(start(first.operations, "work 2 a", component))
    await wait_for_requests(models, 1)
    sent = await first.run(send(first.operations, run_id, "mind the gap"))
    models.release()
    await wait_for_requests(models, 2)
    # It is delivered to a call that gets no answer.
    await first.kill()
    models.let_go()

    second = Process(site.settings)
    await second.run(second.open())
    run = await second.run(wait_for_run(second.operations, run_id))
    assert run["content"] == "done after work 2 a | mind the gap"
    marked = [message for message in run["messages"] if "message_id" in message]
    assert [message["message_id"] for message in marked] == [sent["message_id"]]
    fate = await second.run(read_fate(second.operations, run_id, sent["message_id"]))
    assert fate["status"] == "delivered"
    await second.stop()


async def test_lost_run_keeps_the_message_of_its_last_call(
    site: Deployment, models: SteppingModels
) -> None:
    asyncio.get_running_loop().set_task_factory(create_process_task)
    models.hold()
    first = Process(site.settings)
    await first.run(first.open())
    run_id = await first.run(start(first.operations, "work 2 a"))
    await wait_for_requests(models, 1)
    taken = await first.run(send(first.operations, run_id, "taken"))
    models.release()
    await wait_for_requests(models, 2)
    waiting = await first.run(send(first.operations, run_id, "work 0 waiting"))
    await first.kill()
    models.let_go()

    second = Process(site.settings)
    await second.run(second.open())
    run = await second.run(wait_for_run(second.operations, run_id))
    assert (run["status"], run["error"]["code"]) == ("ERROR", "WORKER_LOST")
    assert run["messages"][-1]["message_id"] == taken["message_id"]
    fates = [
        await second.run(read_fate(second.operations, run_id, sent["message_id"]))
        for sent in (taken, waiting)
    ]
    assert [fate["status"] for fate in fates] == ["delivered", "next_run"]
    await second.run(wait_for_run(second.operations, fates[1]["next_run_id"]))
    await second.stop()


async def test_repeated_request_returns_the_first_message(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a")
        await wait_for_requests(models, 1)
        first = await send(operations, run_id, "once", idempotency_key="k")
        second = await send(operations, run_id, "once", idempotency_key="k")
        assert second == first
        with pytest.raises(errors.ValidationFailed):
            await send(operations, run_id, "twice", idempotency_key="k")
        assert (await operations.runs.list_messages(run_id)).value["total"] == 1
        models.let_go()
        await wait_for_run(operations, run_id)


async def test_sender_needs_the_session_and_the_scope_of_a_start(
    site: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(site) as service:
        run_id = await start(user(service), "work 1 a")
        await wait_for_requests(models, 1)
        with pytest.raises(errors.NotFound):
            await send(user(service, "somebody"), run_id, "hello")
        reader = service.operations_for(Principal(subject="me", scopes=frozenset({"agents:read"})))
        with pytest.raises(errors.Forbidden) as refusal:
            await send(reader, run_id, "hello")
        assert refusal.value.required_scopes[0] == "agents:worker:run"

        entries = await service.hosting.databases.system.read(_AUDIT.rows(lambda *row: row))
        assert entries == [("failed", f"run:{run_id}"), ("denied", f"run:{run_id}")]
        models.let_go()


async def test_message_that_no_call_was_made_for_is_taken_back(
    site: Deployment, models: SteppingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped between the delivery and its model call has not got the message."""
    models.hold()
    async with open_service(site) as service:
        operations = user(service)
        run_id = await start(operations, "work 2 a")
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "work 0 b")
        live = service.hosting.engine.find_run(run_id)
        assert live is not None
        take = live.take_messages

        async def take_and_fail(**options: Any) -> Any:
            assert await take(**options)
            raise ExecutionError("MODEL_UNAVAILABLE")

        monkeypatch.setattr(live, "take_messages", take_and_fail)
        models.let_go()
        run = await wait_for_run(operations, run_id)
        assert run["status"] == "ERROR"
        assert [message for message in run["messages"] if "message_id" in message] == []
        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("next_run", None)
