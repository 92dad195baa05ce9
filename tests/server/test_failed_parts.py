"""Failed runs of agents in code name the part that failed: the model, a tool or the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import run_agent, serve_module

AGENTS = ("checked", "loading", "langgraph", "pydantic_ai", "openai_agents")


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("failing")
    with serve_module(folder, model_endpoint, "failing_agents", AGENTS) as client:
        yield client


def list_calls(run: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["tool_name"], each["result"]) for each in run["tools"]]


def call(number: int, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": '{"path": "x"}'}
    return {"id": f"call_{number}", "type": "function", "function": function}


@pytest.mark.parametrize(
    ("name", "code"), [("checked", "MODEL_UNAVAILABLE"), ("loading", "AGENT_FAILED")]
)
def test_tool_that_did_not_run_is_not_blamed(client: httpx2.Client, name: str, code: str) -> None:
    run = run_agent(client, name, "go")
    assert (run["status"], run["error"]["code"]) == ("ERROR", code)
    ((tool, result),) = list_calls(run)
    assert tool == "fetch"
    assert "failed" not in result


@pytest.mark.parametrize("name", ["langgraph", "pydantic_ai"])
def test_tool_is_blamed_among_calls_at_the_same_time(client: httpx2.Client, name: str) -> None:
    run = run_agent(client, name, [{"tool_calls": [call(1, "wait"), call(2, "fetch")]}])
    detail = "The tool fetch failed (ConnectError)"
    assert run["error"] == {"code": "TOOL_FAILED", "detail": detail}
    assert dict(list_calls(run))["fetch"] == detail
    assert "failed" not in dict(list_calls(run))["wait"]


def test_request_of_a_tool_is_no_failure_of_the_model(client: httpx2.Client) -> None:
    run = run_agent(client, "openai_agents", [{"tool_calls": [call(1, "wait"), call(2, "fetch")]}])
    assert run["error"]["code"] == "AGENT_FAILED"
    run = run_agent(client, "openai_agents", [{"tool_calls": [call(1, "fetch")]}])
    assert run["error"]["code"] == "TOOL_FAILED"
