"""Paused runs in the interfaces of OpenAI, MCP and AgentOS: none looks completed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from agentctl.server import create_app
from tests.approvals.conftest import AGENTS
from tests.approvals.people import People
from tests.deployment import create_deployment
from tests.server.event_streams import parse_events
from tests.server.threaded_server import serve_in_thread


def open_client(people: People) -> openai.OpenAI:
    key = people.host.deployment.token("ann", "agents:run")
    return openai.OpenAI(api_key=key, base_url=f"{people.host.url}/v1", max_retries=2)


def count_paused(people: People) -> int:
    response = people.send("root", "GET", "/runs?status=PAUSED&limit=1")
    count: int = response.json()["meta"]["total_count"]
    return count


def test_chat_completion_of_a_paused_run_is_an_error(people: People) -> None:
    messages: Any = [{"role": "user", "content": "user"}]
    before = count_paused(people)
    with open_client(people) as client:
        with pytest.raises(openai.ConflictError) as refused:
            client.chat.completions.create(model="payer", messages=messages)
        assert refused.value.code == "run_paused"
        assert count_paused(people) == before + 1, "the client does not repeat the request"
        chunks = client.chat.completions.create(model="payer", messages=messages, stream=True)
        reasons: list[Any] = []

        def read() -> None:
            for chunk in chunks:
                reasons.extend(choice.finish_reason for choice in chunk.choices)

        with pytest.raises(openai.APIError) as broken:
            read()
    assert broken.value.code == "run_paused"
    assert set(reasons) <= {None}


def test_response_of_a_paused_run_is_an_error(people: People) -> None:
    with open_client(people) as client:
        with pytest.raises(openai.ConflictError) as refused:
            client.responses.create(model="payer", input="user")
        assert refused.value.code == "run_paused"
        events = list(client.responses.create(model="payer", input="user", stream=True))
    assert events[-1].type == "response.failed"
    error = events[-1].response.error
    assert error is not None
    assert (error.code, events[-1].response.status) == ("run_paused", "failed")


async def test_tool_call_of_a_paused_run_names_run_and_approvals(people: People) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    fields = people.host.bearer("ann", "agents:run")
    async with httpx2.AsyncClient(headers=fields, timeout=30) as http:
        transport = streamable_http_client(f"{people.host.url}/mcp", http_client=http)
        async with Client(transport) as client:
            result: Any = await client.call_tool("agent_payer", {"message": "user ask"})
    assert result.is_error
    run_id = result.structured_content["run_id"]
    named = result.structured_content["approvals"]
    assert [row["approval_id"] for row in people.approvals({"run_id": run_id})] == named
    text = result.content[0].text
    assert text.startswith(f"The run {run_id} is paused. It waits for a decision: pay (approval ")
    assert all(approval_id in text for approval_id in named)


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """A server with the shapes of AgentOS."""
    folder = tmp_path_factory.mktemp("compatible")
    shutil.copy(Path(__file__).with_name("paying_agent.py"), folder)
    (folder / "ledger.jsonl").touch()
    shapes = 'compatibility = "agentos"'
    url = "http://127.0.0.1:9/v1"
    deployment = create_deployment(folder, url, extra=AGENTS, server=shapes)
    with serve_in_thread(deployment, create_app(deployment.settings)) as host:
        yield People(host)


def test_agentos_shapes_have_the_status_and_the_event(compatible: People) -> None:
    people = compatible
    form = {"message": "user", "stream": "false", "session_id": "s1"}
    run = people.send("ann", "POST", "/agents/payer/runs", data=form).json()
    assert run["status"] == "PAUSED"
    (item,) = people.send("ann", "GET", "/sessions/s1/runs?type=agent").json()
    assert item["status"] == "PAUSED"
    form = {"message": "user", "stream": "true"}
    with people.host.client.stream(
        "POST", "/agents/payer/runs", data=form, headers=people.headers("ann")
    ) as response:
        events = list(parse_events(response.iter_lines()))
    name, paused, _ = events[-1]
    assert name == "RunPaused"
    (tool,) = paused["tools"]
    assert (tool["tool_name"], tool["requires_confirmation"]) == ("pay", True)
    assert "approvals" not in paused
