"""Paused runs in the interfaces of OpenAI, MCP and AgentOS: none looks completed."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.approvals.conftest import AGENTS
from tests.approvals.people import People
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import create_deployment
from tests.kit.mcp_wire import McpWire
from tests.kit.process import base_environment
from tests.kit.threaded_server import serve_in_thread
from tests.server.event_streams import parse_events


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


Answers = Callable[[Any], Any]


@asynccontextmanager
async def open_mcp(people: People, mode: str, answer: Answers | None) -> AsyncIterator[Any]:
    """Open a client of MCP for ann, whose questions are answered by a function of the message."""
    from mcp import Client, types
    from mcp.client.streamable_http import streamable_http_client

    async def elicit(context: Any, params: Any) -> Any:
        assert answer is not None
        action, content = answer(params)
        return types.ElicitResult(action=action, content=content)

    fields = people.host.bearer("ann", "agents:run")
    async with httpx2.AsyncClient(headers=fields, timeout=PATIENCE) as http:
        transport = streamable_http_client(f"{people.host.url}/mcp", http_client=http)
        callback: Any = elicit if answer is not None else None
        async with Client(transport, mode=mode, elicitation_callback=callback) as client:
            yield client


MODES = ("legacy", "auto")
"""Clients with a session, and clients of the protocol 2026-07-28."""


def answer_all(params: Any) -> Any:
    fields = params.requested_schema["properties"]
    if "decision" in fields:
        assert 'wants to call pay with {"amount": 10, "to": "bob"}' in params.message
        return "accept", {"decision": "approve"}
    if "result" in fields:
        assert 'Execute open_file with {"path": "a.txt"}' in params.message
        return "accept", {"result": "contents"}
    if "answer" in fields:
        assert (params.message, fields["answer"]["enum"]) == ("Which way?", ["left", "right"])
        return "accept", {"answer": "left"}
    return "accept", {"seats": 2, "window": True}


@pytest.mark.parametrize("mode", MODES)
async def test_user_of_an_mcp_client_decides(people: People, mode: str) -> None:
    before = len(people.payments)
    async with open_mcp(people, mode, answer_all) as client:
        given = {"message": "user ask | open form"}
        result: Any = await client.call_tool("agent_payer", given)
    assert not result.is_error, result
    assert result.content[0].text == "Results: contents, {'seats': 2, 'window': True}"
    assert len(people.payments) == before + 1
    rows = people.approvals(result.structured_content)
    assert [(row["status"], row["decided_by"]) for row in rows] == [
        ("approved", "ann"), ("answered", "ann"), ("answered", "ann"), ("answered", "ann"),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
async def test_answer_outside_its_schema_rejects(people: People, mode: str) -> None:
    async with open_mcp(people, mode, lambda _: ("accept", {"answer": "up"})) as client:
        result: Any = await client.call_tool("agent_payer", {"message": "ask"})
    (row,) = people.approvals(result.structured_content)
    assert (row["status"], row["note"]) == ("rejected", "The answer is not valid")


def test_cancel_stops_a_run_whose_question_is_open(people: People) -> None:
    with httpx2.Client(
        base_url=people.host.url, headers=people.headers("ann"), timeout=PATIENCE
    ) as client:
        wire = McpWire(client, elicitation={})
        with wire.call("agent_payer", 1, message="user") as messages:
            question = next(messages)
            assert question["method"] == "elicitation/create"
            stolen = people.host.bearer("ben", "agents:run")
            session = people.host.client.post(
                "/mcp",
                json={"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}},
                headers=stolen,
            )
            assert session.status_code == 404, "the question of another user"
            assert wire.cancel(1).status_code == 202
            (last,) = messages
        assert last["result"]["isError"]
        late = {"id": question["id"], "result": {"action": "accept", "content": {}}}
        assert wire.post(late).status_code == 404


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """A server with the shapes of AgentOS."""
    folder = tmp_path_factory.mktemp("compatible")
    shutil.copy(Path(__file__).with_name("paying_agent.py"), folder)
    (folder / "ledger.jsonl").touch()
    shapes = 'compatibility = "agentos"'
    url = "http://127.0.0.1:9/v1"
    deployment = create_deployment(folder, url, extra=AGENTS, server=shapes)
    with serve_in_thread(deployment) as host:
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


def test_command_of_a_user_leaves_no_denied_request(people: People, tmp_path: Path) -> None:
    token = people.host.deployment.token("nora", "agents:run")
    started = run_command(
        *("runs", "start", "--agent", "payer", "-m", "user", "--url", people.host.url),
        environment=base_environment() | {"HOME": str(tmp_path), "AGENTCTL_TOKEN": token},
        folder=tmp_path,
    )
    assert started.code == 9, started.stderr
    assert "waits for approval of pay" in started.stderr
    entries = people.send("root", "GET", "/audit?principal=nora").json()["data"]
    assert [entry["outcome"] for entry in entries] == ["allowed"]
