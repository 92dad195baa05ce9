"""The causes of failures: kept with a run, and read with the scope `runs:debug` only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.interface.requests import RunFilter, RunRequest, RunView
from agentctl.records.text import MASK
from agentctl.runtime.failures import MAXIMUM_CAUSES, MESSAGE_CHARACTERS
from agentctl.service.service import Service, ServiceOperations
from tests.kit import clock
from tests.kit.command import run_command
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import ALL, admin, open_service, user

SECRET = "sk-a-secret-of-the-environment"

CODE = '''
import asyncio
import os


def look_up(order):
    raise LookupError(f"no order {order}, key {os.environ['SHOP_API_KEY']}")


def fail(message):
    return look_up(message)


async def fail_in_group(message):
    async with asyncio.TaskGroup() as group:
        group.create_task(wait_and_fail())


async def wait_and_fail():
    await asyncio.sleep(0)
    raise ValueError("x" * 10_000 + "\\x1b[31m")


def add(a: int, b: int) -> int:
    """Add."""
    raise OSError(f"no adder for {a}")
'''

CONFIGURATION = """
[[agents]]
id = "shop"
object = "shop_code:fail"

[[agents]]
id = "grouped"
object = "shop_code:fail_in_group"

[[agents]]
id = "adder"
model = "tool-add"
tools = ["shop_code:add"]

[[workflows]]
id = "order"
steps = [{ name = "look", agent = "shop" }]
"""


@pytest.fixture
def shop(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    (tmp_path / "shop_code.py").write_text(CODE)
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    return create_deployment(tmp_path, model_endpoint.base_url, extra=CONFIGURATION)


def debugger(service: Service, subject: str = "me") -> ServiceOperations:
    """Return the operations of a user who may read causes."""
    return service.operations_for(Principal(subject=subject, scopes=ALL | {"runs:debug"}))


async def read_causes(operations: ServiceOperations, run_id: str) -> list[dict[str, Any]]:
    return [dict(each) for each in (await operations.runs.get_causes(run_id)).value["causes"]]


async def start(
    operations: ServiceOperations, kind: Any, component: str, message: str = "17"
) -> dict[str, Any]:
    return dict((await operations.runs.create(kind, component, RunRequest(message))).value)


def run_in(deployment: Deployment, *arguments: str) -> str:
    """Run a command on the configuration of a deployment and return its output."""
    environment = {"PATH": "", "USER": "boss"}
    result = run_command(*arguments, environment=environment, folder=deployment.folder)
    assert result.code == 0, result.stderr
    return result.stdout


async def test_cause_of_a_refused_key_is_the_response_of_the_provider(shop: Deployment) -> None:
    async with open_service(shop) as service:
        run = await start(user(service), "agent", "http-401")
        (cause,) = await read_causes(debugger(service), run["run_id"])
        assert (cause["type"], cause["place"]) == ("ModelFailure", None)
        assert cause["message"].startswith("status 401: ")
        assert "provider" in cause["message"]

        (failure,) = [
            failure
            for failure in (await debugger(service).runs.list_failures(RunFilter())).value["data"]
            if failure["run_id"] == run["run_id"]
        ]
        assert failure["error"] == run["error"]
        assert failure["error"]["code"] == "MODEL_KEY_REJECTED"
        assert failure["cause"] == cause


async def test_cause_of_an_agent_has_type_message_and_place(shop: Deployment) -> None:
    async with open_service(shop) as service:
        run = await start(user(service), "agent", "shop")
        (cause,) = await read_causes(debugger(service), run["run_id"])
        assert run["error"] == {"code": "AGENT_FAILED", "detail": "The code of the agent failed"}
        assert cause.pop("raised_at").endswith("Z")
        line = CODE.splitlines().index("def look_up(order):") + 2
        assert cause == {
            "run_id": run["run_id"],
            "component_type": "agent",
            "component_id": "shop",
            "tool_name": None,
            "type": "LookupError",
            "message": f"no order 17, key {MASK}",
            "place": f"shop_code.py:{line} in look_up",
        }


async def test_message_is_bounded_and_safe_for_terminals(shop: Deployment) -> None:
    async with open_service(shop) as service:
        run = await start(user(service), "agent", "grouped")
        (cause,) = await read_causes(debugger(service), run["run_id"])
    assert cause["type"] == "ValueError"
    assert len(cause["message"]) == MESSAGE_CHARACTERS
    assert cause["place"].endswith(" in wait_and_fail")


async def test_failed_tools_and_steps_have_causes(shop: Deployment) -> None:
    async with open_service(shop) as service:
        run = await start(user(service), "agent", "adder", '{"a": 1, "b": 2}')
        causes = await read_causes(admin(service), run["run_id"])
        assert run["status"] == "COMPLETED"
        assert {(each["tool_name"], each["type"]) for each in causes} == {("add", "OSError")}
        assert 0 < len(causes) <= MAXIMUM_CAUSES
        flow = dict((await user(service).runs.create("workflow", "order", RunRequest("1"))).value)
        (cause,) = await read_causes(admin(service), flow["run_id"])
        assert cause["run_id"] == flow["member_runs"][0]
        assert cause["component_id"] == "shop"


async def test_failures_have_the_cause_that_ended_them(shop: Deployment) -> None:
    async with open_service(shop) as service:
        started = [
            await start(user(service, "failing"), kind, component, message)
            for kind, component, message in (
                ("agent", "shop", "17"),
                ("workflow", "order", "18"),
                ("agent", "adder", '{"a": 1, "b": 2}'),
                ("agent", "http-500", "19"),
            )
        ]
        own = RunFilter(user_id="failing", parent="none")
        page = (await admin(service).runs.list_failures(own)).value
        found = {each["run_id"]: each["cause"] for each in page["data"]}
        shop_run, flow, survived, refused = (run["run_id"] for run in started)
        assert page["meta"]["total_count"] == 3
        assert page["data"][0]["error"]["code"] == "MODEL_UNAVAILABLE"
        assert found[refused]["message"].startswith("status 500: ")
        assert survived not in found
        assert found[shop_run]["message"] == f"no order 17, key {MASK}"
        assert found[flow]["message"] == f"no order 18, key {MASK}"
        assert found[flow]["run_id"] == started[1]["member_runs"][0]

        with pytest.raises(errors.Forbidden):
            await user(service, "failing").runs.list_failures(RunFilter())
        others = (await debugger(service, "another").runs.list_failures(RunFilter())).value
        assert others["data"] == []


async def test_causes_are_for_callers_with_the_scope_only(shop: Deployment) -> None:
    async with open_service(shop) as service:
        run = await start(user(service), "agent", "shop")
        run_id = run["run_id"]
        with pytest.raises(errors.Forbidden) as refusal:
            await user(service).runs.get_causes(run_id)
        assert refusal.value.required_scopes == ("runs:debug",)
        with pytest.raises(errors.NotFound):
            await debugger(service, "another").runs.get_causes(run_id)
        operations = admin(service)
        documents = [
            (await operations.runs.get(run_id, form=RunView(view))).raw  # type: ignore[arg-type]
            for view in ("full", "items", "summary", "phase")
        ]
        documents.append((await operations.sessions.get(run["session_id"])).raw)
        documents.append((await operations.sessions.list_runs(run["session_id"])).raw)
        async for event in operations.runs.stream("agent", "shop", RunRequest("17")):
            documents.append(event.data)
        assert not any(b"LookupError" in each or b"no order" in each for each in documents)


def test_commands_show_causes_to_administrators(shop: Deployment) -> None:
    async def start_run() -> dict[str, Any]:
        async with open_service(shop) as service:
            return await start(user(service), "agent", "shop")

    run = clock.run(start_run())
    shown = run_in(shop, "runs", "get", run["run_id"], "-o", "text")
    assert f"cause: LookupError: no order 17, key {MASK}" in shown
    assert "in look_up" in shown
    session = run_in(shop, "sessions", "get", run["session_id"], "-o", "markdown")
    assert "Cause: `LookupError: no order 17" in session
    assert "LookupError" not in run_in(shop, "runs", "get", run["run_id"], "-o", "json")
