"""The face for clients of MCP, used with the client of the SDK (docs/mcp.md "Agents as tools")."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentctl.interop.mcp.calls import CANCEL_REASON, SESSION_REASON
from agentctl.runs.engine.engine import CLIENT_DISCONNECTED
from agentctl.runtime.mcp.library import ProtocolError
from tests.kit.conditions import PATIENCE, wait_for, wait_until
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.mcp_wire import LEGACY, McpWire
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

RUN = ("agents:run", "teams:run")
VERSIONS = ("legacy", "auto")


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    with serve(tmp_path_factory.mktemp("mcp"), model_endpoint) as host:
        yield host


@contextmanager
def serve(folder: Path, model_endpoint: ModelEndpoint) -> Iterator[ThreadedServer]:
    extra = "[mcp_endpoint]\nenabled = true\n"
    deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
    with serve_in_thread(deployment) as host:
        yield host


@asynccontextmanager
async def connect(
    served: ThreadedServer, *scopes: str, user: str = "ada", mode: str = "auto"
) -> AsyncIterator[Any]:
    """Connect with the client of the library."""
    headers = served.bearer(user, *(scopes or RUN))
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport: Any = streamable_http_client(f"{served.url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def get_text(result: Any) -> str:
    text: str = result.content[0].text
    return text


async def names(client: Any) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("mode", VERSIONS)
async def test_call_of_an_agent_is_a_run_in_its_session(served: ThreadedServer, mode: str) -> None:
    async with connect(served, mode=mode) as client:
        first = await client.call_tool("agent_history", {"message": "one"})
        session = first.structured_content["session_id"]
        second = await client.call_tool("agent_history", {"message": "two", "session_id": session})
    texts = [each[1] for each in json.loads(get_text(second)) if each[0] == "user"]
    assert texts == ["one", "two"]
    assert second.structured_content["session_id"] == session
    runs = get_runs(served, session)
    assert [run["user_id"] for run in runs] == ["ada", "ada"]
    assert runs[1]["run_id"] == second.structured_content["run_id"]


def get_runs(served: ThreadedServer, session_id: str) -> list[dict[str, Any]]:
    path = f"/sessions/{session_id}/runs"
    runs: list[dict[str, Any]] = served.client.get(
        path, headers=served.bearer("root", ADMIN)
    ).json()
    return runs


async def test_tools_are_those_that_the_caller_may_use(served: ThreadedServer) -> None:
    async with connect(served) as client:
        found = await names(client)
        assert {"agent_echo", "agent_http-500", "team_crew"} <= found
        assert not {"list_sessions", "get_session"} & found
    async with connect(served, "agents:echo:run", "sessions:read") as client:
        reads = {"list_sessions", "get_session", "list_session_runs", "get_session_run"}
        assert await names(client) == {"agent_echo", *reads}
        with pytest.raises(ProtocolError, match="no such tool"):
            await client.call_tool("agent_half", {"message": "x"})
        with pytest.raises(ProtocolError, match="no such tool"):
            await client.call_tool("agent_none", {"message": "x"})
    denied = served.client.get("/audit", headers=served.bearer("root", ADMIN)).json()["data"]
    assert ("create_agent_run", "denied") in {(e["operation"], e["outcome"]) for e in denied}


async def test_sessions_can_be_read(served: ThreadedServer) -> None:
    async with connect(served, *RUN, "sessions:read", user="bob") as client:
        ran = await client.call_tool("team_crew", {"message": "ask echo", "session_id": "bob-1"})
        listed = json.loads(get_text(await client.call_tool("list_sessions", {"limit": 5})))
        assert [session["session_id"] for session in listed["data"]] == ["bob-1"]
        detail = await client.call_tool("get_session", {"session_id": "bob-1"})
        assert json.loads(get_text(detail))["session_id"] == "bob-1"
        run = await client.call_tool(
            "get_session_run", {"session_id": "bob-1", "run_id": ran.structured_content["run_id"]}
        )
        assert json.loads(get_text(run))["content"] == get_text(ran)
    async with connect(served, *RUN, "sessions:read", user="eve") as client:
        other = await client.call_tool("get_session", {"session_id": "bob-1"})
        assert other.is_error
        assert get_text(other) == "Session not found"


async def test_invalid_arguments_are_results_that_models_read(served: ThreadedServer) -> None:
    async with connect(served) as client:
        for given in ({}, {"message": 5}, {"message": "x", "more": "y"}):
            refused = await client.call_tool("agent_echo", given)
            assert refused.is_error


@pytest.mark.parametrize("mode", VERSIONS)
async def test_cancelled_call_cancels_the_run(served: ThreadedServer, mode: str) -> None:
    session = f"cancelled-{mode}"
    async with connect(served, mode=mode) as client:
        given = {"message": "x", "session_id": session}
        call = asyncio.create_task(client.call_tool("agent_hang", given))
        await wait_until(lambda: status(served, session) == "RUNNING")
        call.cancel()
        await wait_until(lambda: status(served, session) == "CANCELLED")
    reason = CANCEL_REASON if mode == "legacy" else CLIENT_DISCONNECTED
    assert get_runs(served, session)[0]["cancel_reason"] == reason


def status(served: ThreadedServer, session_id: str) -> str | None:
    found = served.client.get(
        "/runs", params={"session_id": session_id}, headers=served.bearer("root", ADMIN)
    ).json()["data"]
    return found[0]["status"] if found else None


async def test_client_that_leaves_cancels_the_run(served: ThreadedServer) -> None:
    headers = {
        **served.bearer("ada", *RUN),
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    async with httpx2.AsyncClient(base_url=served.url, headers=headers) as http:
        info = {"name": "t", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        opened = await http.post(
            "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        )
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        given = {"message": "x", "session_id": "left-mcp"}
        params = {"name": "agent_hang", "arguments": given}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        async with http.stream("POST", "/mcp", json=body):
            await wait_until(lambda: status(served, "left-mcp") == "RUNNING")
        await wait_until(lambda: status(served, "left-mcp") == "CANCELLED")
        stolen = await http.post("/mcp", json=body, headers=served.bearer("eve", *RUN))
        assert stolen.status_code == 404


@pytest.fixture
def wire(served: ThreadedServer) -> Iterator[McpWire]:
    with httpx2.Client(
        base_url=served.url, headers=served.bearer("wim", *RUN), timeout=PATIENCE
    ) as client:
        yield McpWire(client)


def test_cancel_ends_the_model_call(
    served: ThreadedServer, wire: McpWire, model_endpoint: ModelEndpoint
) -> None:
    before = model_endpoint.open_calls()
    with wire.call("agent_hang", "one", message="x", session_id="wire-1") as messages:
        model_endpoint.wait_for_open(before + 1)
        assert wire.cancel("one").status_code == 202
        (last,) = messages
    assert last["result"]["isError"]
    assert CANCEL_REASON in last["result"]["content"][0]["text"]
    model_endpoint.wait_for_open(before)


def test_cancel_without_a_call_is_not_accepted(
    served: ThreadedServer, wire: McpWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.interop.mcp.handshake.CANCEL_SECONDS", 0.1)
    refused = wire.cancel(77)
    assert refused.status_code == 404
    assert "no call under way" in refused.json()["error"]["message"]
    with wire.call("agent_echo", 7, message="x") as messages:
        list(messages)
    assert wire.cancel(7).status_code == 404, "the call has ended"
    with wire.call("agent_hang", 8, message="x", session_id="wire-2") as messages:
        wait_for(lambda: status(served, "wire-2") == "RUNNING")
        with httpx2.Client(base_url=served.url, headers=served.bearer("wim", *RUN)) as client:
            assert McpWire(client).cancel(8).status_code == 404, "the call of another session"
        assert status(served, "wire-2") == "RUNNING"
        assert wire.cancel(8).status_code == 202
        list(messages)


def test_end_of_the_session_cancels_its_calls(
    served: ThreadedServer, wire: McpWire, model_endpoint: ModelEndpoint
) -> None:
    before = model_endpoint.open_calls()
    with wire.call("agent_hang", 1, message="x") as messages:
        model_endpoint.wait_for_open(before + 1)
        assert wire.delete().status_code == 204
        (last,) = messages
    assert SESSION_REASON in last["result"]["content"][0]["text"]
    model_endpoint.wait_for_open(before)


def test_ended_session_accepts_no_request(served: ThreadedServer, wire: McpWire) -> None:
    assert wire.delete().status_code == 204
    for message in ({"id": 2, "method": "ping"}, {"method": "notifications/cancelled"}):
        refused = wire.post(message)
        assert refused.status_code == 404
        assert "its client has ended it" in refused.json()["error"]["message"]
    call = {"name": "agent_echo", "arguments": {"message": "late", "session_id": "late"}}
    assert wire.post({"id": 3, "method": "tools/call", "params": call}).status_code == 404
    assert wire.delete().status_code == 404
    missing = served.client.get("/sessions/late", headers=served.bearer("root", ADMIN))
    assert missing.status_code == 404


def test_reused_request_id_is_another_run(wire: McpWire) -> None:
    results = []
    for text in ("one", "two"):
        with wire.call("agent_echo", 1, message=text) as messages:
            (last,) = messages
        results.append(last["result"]["structuredContent"])
    assert [result["content"] for result in results] == ["one", "two"]
    assert results[0]["run_id"] != results[1]["run_id"]


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ([], 400, -32600),
        ({"id": 1, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}, 400, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "prompts/list"}, 200, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}, 200, -32602),
        ({"jsonrpc": "2.0", "id": "x", "result": {"action": "accept"}}, 404, -32000),
    ],
)
def test_invalid_message_is_a_json_rpc_error(
    served: ThreadedServer, message: Any, status: int, code: int
) -> None:
    headers = {**served.bearer("ada", *RUN), **LEGACY}
    answer = served.client.post("/mcp", json=message, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_session_of_another_caller_is_not_found(served: ThreadedServer, wire: McpWire) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    stolen = {**wire.headers, **served.bearer("eve", *RUN)}
    assert served.client.post("/mcp", json=body, headers=stolen).status_code == 404
    unknown = {**wire.headers, **served.bearer("wim", *RUN), "Mcp-Session-Id": "x"}
    assert served.client.post("/mcp", json=body, headers=unknown).status_code == 404


def test_sessions_of_one_caller_do_not_shut_out_others(served: ThreadedServer) -> None:
    with httpx2.Client(base_url=served.url, headers=served.bearer("greedy")) as client:
        opened = [McpWire(client) for _ in range(60)]
        with httpx2.Client(base_url=served.url, headers=served.bearer("other", *RUN)) as another:
            assert McpWire(another).ask("ping") == {}
        assert [wire.ask("tools/list") for wire in (opened[0], opened[-1])] == [{"tools": []}] * 2


def test_errors_without_a_token_are_json_rpc(served: ThreadedServer) -> None:
    unknown = served.client.post("/mcp", json={})
    assert unknown.json()["error"]["message"] == "Authentication required"
    assert unknown.json()["error"]["data"]["error_code"] == "UNAUTHENTICATED"
    assert "resource_metadata" not in unknown.headers["www-authenticate"]
    for path in (
        "oauth-protected-resource",
        "oauth-protected-resource/mcp",
        "openid-configuration",
    ):
        assert served.client.get(f"/.well-known/{path}").status_code == 404
    for path in ("authorize", "register", "token"):
        refused = served.client.post(f"/{path}", json={})
        assert refused.status_code == 404
        assert "no authorization server" in refused.json()["detail"]


def test_endpoint_requires_a_token_and_a_message(served: ThreadedServer) -> None:
    unknown = served.client.post("/mcp", json={})
    assert unknown.status_code == 401
    assert unknown.headers["www-authenticate"].startswith("Bearer")
    assert served.client.get("/mcp", headers=served.bearer("ada", *RUN)).status_code == 405


def test_request_that_is_too_large_is_refused(served: ThreadedServer) -> None:
    params = {"name": "agent_echo", "arguments": {"message": "x" * 1_100_000}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {**served.bearer("ada", *RUN), **LEGACY}
    assert served.client.post("/mcp", json=body, headers=headers).status_code == 413


def test_face_is_off_by_default(server: ThreadedServer) -> None:
    assert server.client.post("/mcp", headers=server.bearer("root", ADMIN)).status_code == 404
