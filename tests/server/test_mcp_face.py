"""The face for clients of MCP, used with the client of the SDK (docs/mcp.md "Agents as tools")."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from agentctl.interop.mcp.calls import CANCEL_REASON
from agentctl.runs.engine import CLIENT_DISCONNECTED
from agentctl.runtime.mcp.library import IS_FIRST, ProtocolError
from agentctl.server import create_app
from tests.deployment import ADMIN, create_deployment
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.server.threaded_server import ThreadedServer, serve_in_thread

RUN = ("agents:run", "teams:run")
VERSIONS = ("legacy",) if IS_FIRST else ("legacy", "auto")

SESSIONS = "agentctl.interop.mcp.sessions"

needs_sessions = pytest.mark.skipif(IS_FIRST, reason="version 1 has no sessions of MCP")


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
    with serve_in_thread(deployment, create_app(deployment.settings)) as host:
        yield host


@asynccontextmanager
async def connect(
    served: ThreadedServer, *scopes: str, user: str = "ada", mode: str = "auto"
) -> AsyncIterator[Any]:
    """Connect with the client of the installed version of the library."""
    from mcp.client.streamable_http import streamable_http_client

    headers = served.bearer(user, *(scopes or RUN))
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport: Any = streamable_http_client(f"{served.url}/mcp", http_client=http)
        if IS_FIRST:
            from mcp import ClientSession

            async with transport as streams, ClientSession(*streams[:2]) as session:
                await session.initialize()
                yield FirstClient(session)
            return
        from mcp import Client

        async with Client(transport, mode=mode) as client:
            yield client


class FirstClient:
    """The client of version 1, with the names of version 2."""

    def __init__(self, session: Any) -> None:
        self.list_tools = session.list_tools
        self._session = session

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        result = await self._session.call_tool(name, arguments)
        return SimpleNamespace(
            content=result.content,
            structured_content=result.structuredContent,
            is_error=result.isError,
        )


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


async def test_failures_are_results_that_models_read(served: ThreadedServer) -> None:
    async with connect(served) as client:
        failed = await client.call_tool("agent_http-500", {"message": "x"})
        assert failed.is_error
        assert "MODEL_UNAVAILABLE" in get_text(failed)
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
        if not IS_FIRST:
            await wait_until(lambda: status(served, session) == "CANCELLED")
    # Version 1 does not send the cancel, and has no session in which the server could take it.
    await wait_until(lambda: status(served, session) == "CANCELLED")
    sends_cancel = mode == "legacy" and not IS_FIRST
    reason = CANCEL_REASON if sends_cancel else CLIENT_DISCONNECTED
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
        if not IS_FIRST:
            http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        given = {"message": "x", "session_id": "left-mcp"}
        params = {"name": "agent_hang", "arguments": given}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        async with http.stream("POST", "/mcp", json=body):
            await wait_until(lambda: status(served, "left-mcp") == "RUNNING")
        await wait_until(lambda: status(served, "left-mcp") == "CANCELLED")
        if not IS_FIRST:
            stolen = await http.post("/mcp", json=body, headers=served.bearer("eve", *RUN))
            assert stolen.status_code == 404


def open_session(served: ThreadedServer, headers: dict[str, str]) -> tuple[int, str]:
    """Open a session of MCP as an older client does; return the status and the id."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    opened = served.client.post(
        "/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        headers={**headers, **LEGACY},
    )
    return opened.status_code, opened.headers.get("mcp-session-id", "")


def list_tools(served: ThreadedServer, headers: dict[str, str], session: str) -> int:
    """Return the status of a request in a session."""
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    sent = {**headers, **LEGACY, "Mcp-Session-Id": session}
    return served.client.post("/mcp", json=body, headers=sent).status_code


LEGACY = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


@needs_sessions
def test_sessions_of_one_caller_do_not_shut_out_others(
    served: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SESSIONS}.MAXIMUM_SESSIONS", 30)
    greedy = {"Authorization": f"Bearer {served.deployment.token('greedy')}"}
    opened = [open_session(served, greedy) for _ in range(40)]
    assert {status for status, _ in opened} == {200}
    for name in ("other-1", "other-2", "other-3"):
        headers = served.bearer(name, *RUN)
        status, session = open_session(served, headers)
        assert (status, list_tools(served, headers, session)) == (200, 200)
    statuses = [list_tools(served, greedy, session) for _, session in opened]
    assert statuses == [404] * 20 + [200] * 20


@needs_sessions
def test_sessions_opened_at_the_same_time_are_counted(served: ThreadedServer) -> None:
    headers = served.bearer("quick", *RUN)
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: open_session(served, headers), range(60)))
    statuses = [list_tools(served, headers, session) for status, session in opened if status == 200]
    assert statuses.count(200) == 20


@needs_sessions
def test_full_server_ends_the_oldest_idle_session(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SESSIONS}.MAXIMUM_SESSIONS", 25)
    with serve(tmp_path, model_endpoint) as served:
        callers = [served.bearer(f"many-{number}", *RUN) for number in range(26)]
        opened = [(headers, open_session(served, headers)) for headers in callers]
        assert {status for _, (status, _) in opened} == {200}
        statuses = [list_tools(served, headers, session) for headers, (_, session) in opened]
    assert statuses == [404, *[200] * 25]


@needs_sessions
async def test_sessions_with_calls_under_way_do_not_end(
    served: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SESSIONS}.SESSIONS_PER_CALLER", 2)
    headers = served.bearer("busy", *RUN)
    async with httpx2.AsyncClient(base_url=served.url, headers={**headers, **LEGACY}) as http:
        held = []
        for number in range(2):
            _, session = open_session(served, headers)
            given = {"message": "x", "session_id": f"busy-{number}"}
            params = {"name": "agent_hang", "arguments": given}
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
            named = {"Mcp-Session-Id": session}
            held.append(asyncio.create_task(http.post("/mcp", json=body, headers=named)))
            await wait_until(lambda n=number: status(served, f"busy-{n}") == "RUNNING")
        refused = served.client.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
            headers={**headers, **LEGACY},
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert open_session(served, served.bearer("another", *RUN))[0] == 200
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    await wait_until(lambda: status(served, "busy-1") == "CANCELLED")


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
