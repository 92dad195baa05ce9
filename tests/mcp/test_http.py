"""Tools of a server with streamable HTTP: headers, sessions of users, and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.config.mcp_table import McpServer
from agentctl.config.settings import Limits
from agentctl.runtime.components.records import build_record
from agentctl.runtime.mcp import server
from agentctl.runtime.mcp.calls import McpUser
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.fake_context import UNREACHED_SECONDS
from tests.mcp.hosting import Hosted, host
from tests.mcp.http_server import State, serve_http

ANN = McpUser("ann", {"tenant": "acme"})
BOB = McpUser("bob", {"tenant": "bell"})


@pytest.fixture
def remote() -> Iterator[State]:
    with serve_http() as state:
        yield state


def spec(remote: State, **values: Any) -> McpServer:
    limits = {"call_seconds": UNREACHED_SECONDS, **values}
    return McpServer("files", url=remote.url, **limits)


def per_user(remote: State, **values: Any) -> McpServer:
    headers = {"X-User": "${user_id}", "X-Tenant": "t-${claims:tenant}"}
    return spec(remote, headers=headers, **values)


async def headers_of(hosted: Hosted, user: McpUser) -> dict[str, str]:
    text, failed = await hosted.call("who", user=user)
    assert not failed, text
    return dict(json.loads(text))


async def test_request_has_the_configured_headers(
    remote: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "token-of-the-shop")
    server = spec(remote, headers={"Authorization": "Bearer ${env:SHOP_TOKEN}"})
    async with host(server) as hosted:
        sent = json.loads(await hosted.text("who"))
    assert sent["authorization"] == "Bearer token-of-the-shop"


async def test_session_is_ended_at_the_close(remote: State) -> None:
    async with host(spec(remote)) as hosted:
        await hosted.text("who")
    assert remote.ended == list(remote.sessions)


async def test_forgotten_session_is_replaced_and_the_call_repeated(remote: State) -> None:
    async with host(spec(remote)) as hosted:
        await hosted.text("who")
        remote.sessions.clear()
        await hosted.text("who")
        assert hosted.server.counters.connections == 2


async def test_failed_request_does_not_end_other_calls(remote: State) -> None:
    async with host(spec(remote)) as hosted:
        hanging, _ = hosted.start_call("hang")
        await wait_until(lambda: "tools/call" in remote.methods)
        assert await hosted.call("reset") == (
            "The MCP server files is not available: the connection broke",
            True,
        )
        remote.released.set()
        assert await hosted.call_result(hanging) == ("done", False)
        assert hosted.server.counters.connections == 1


@pytest.mark.parametrize(
    ("tool", "problem"), [("cut", "the connection broke"), ("endless", "the connection ended")]
)
async def test_broken_body_or_endless_event_fails_its_call_only(
    remote: State, tool: str, problem: str
) -> None:
    async with host(spec(remote), limits=Limits(tool_result_bytes=10_000)) as hosted:
        hanging, _ = hosted.start_call("hang")
        await wait_until(lambda: "tools/call" in remote.methods)
        assert await hosted.call(tool) == (
            f"The MCP server files is not available: {problem}",
            True,
        )
        remote.released.set()
        assert await hosted.call_result(hanging) == ("done", False)
        assert hosted.server.counters.connections == 1


async def test_large_or_compressed_body_fails_its_call_only(remote: State) -> None:
    async with host(spec(remote), limits=Limits(tool_result_bytes=10_000)) as hosted:
        for tool in ("huge", "compressed"):
            text, failed = await hosted.call(tool)
            assert failed
            assert text.endswith("its response is too large or compressed")
        await hosted.text("who")
        assert hosted.server.counters.connections == 1


@pytest.mark.parametrize("tool", ["values", "streamed"])
async def test_result_with_too_many_values_fails_its_call_only(remote: State, tool: str) -> None:
    """decision 75."""
    async with host(spec(remote)) as hosted:
        _, failed = await asyncio.wait_for(hosted.call(tool), PATIENCE)
        assert failed
        await hosted.text("who")


async def test_redirect_to_another_server_is_not_followed(remote: State) -> None:
    async with host(spec(remote)) as hosted:
        text, failed = await hosted.call("redirect")
        assert failed
        assert "not followed" in text


async def test_server_that_comes_later_is_used(remote: State) -> None:
    remote.status = 503
    async with host(spec(remote)) as hosted:
        await hosted.wait_for_state("failed")
        assert hosted.server.problem == "it answered with HTTP 503"
        assert await hosted.names() == []
        remote.status = 0
        await hosted.wait_for_state("connected")
        await hosted.text("who")


async def test_rejected_credentials_are_named(remote: State) -> None:
    remote.status = 401
    async with host(spec(remote)) as hosted:
        await hosted.wait_for_state("failed")
        assert hosted.server.problem == "it rejected the credentials (HTTP 401)"


async def test_server_that_does_not_listen_is_unavailable() -> None:
    server = McpServer("files", url="http://127.0.0.1:9/mcp")
    async with host(server, references=("mcp:files.who",)) as hosted:
        assert await hosted.call("who") == (
            "The MCP server files is not available: it does not accept connections",
            True,
        )


async def test_cancelled_call_notifies_the_server(remote: State) -> None:
    async with host(spec(remote)) as hosted:
        call, context = hosted.start_call("hang")
        await wait_until(lambda: "tools/call" in remote.methods)
        call.cancel()
        await wait_until(lambda: "notifications/cancelled" in remote.methods)
        assert context.transcript.unstopped.names == ["files_hang"]
        remote.released.set()
        await wait_until(lambda: not context.transcript.unstopped.pending)


async def test_each_user_has_a_separate_session(remote: State) -> None:
    async with host(per_user(remote)) as hosted:
        ann = await headers_of(hosted, ANN)
        bob = await headers_of(hosted, BOB)
        assert (ann["x-user"], ann["x-tenant"]) == ("ann", "t-acme")
        assert (bob["x-user"], bob["x-tenant"]) == ("bob", "t-bell")
        assert ann["mcp-session-id"] != bob["mcp-session-id"]
        assert (await headers_of(hosted, ANN))["mcp-session-id"] == ann["mcp-session-id"]
        assert "files_for_ann" in await hosted.names(ANN)
        assert "files_for_ann" not in await hosted.names(BOB)
        agent = hosted.catalog.get("agent", "writer")
        assert agent is not None
        assert "for_ann" not in str(build_record(hosted.catalog, agent))
    assert sorted(remote.ended) == sorted(remote.sessions)


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        (McpUser(), "the run has no user"),
        (McpUser("ann"), "the token of the user has no claim tenant"),
        (
            McpUser("ann\r\nX-Admin: yes", {"tenant": "a"}),
            "the id of the user cannot be a header: it is not printable ASCII text",
        ),
        (
            McpUser("ann", {"tenant": ["a"]}),
            "the claim tenant of the user cannot be a header: it is not printable ASCII text",
        ),
    ],
    ids=["user", "claim", "line feed", "list"],
)
async def test_user_without_usable_values_sends_no_request(
    remote: State, user: McpUser, problem: str
) -> None:
    async with host(per_user(remote), references=("mcp:files.who",)) as hosted:
        assert await hosted.call("who", user=user) == (
            f"The MCP server files is not available: {problem}",
            True,
        )
    assert remote.methods == []


async def test_sessions_are_limited_and_idle_ones_are_closed_first(
    remote: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAXIMUM_SESSIONS", 1)
    async with host(per_user(remote), references=("mcp:files.who",)) as hosted:
        ann = await headers_of(hosted, ANN)
        bob = await headers_of(hosted, BOB)
        await wait_until(lambda: ann["mcp-session-id"] in remote.ended)
        assert bob["mcp-session-id"] not in remote.ended
        assert remote.sessions.keys() - remote.ended == {bob["mcp-session-id"]}


async def test_user_beyond_the_limit_fails_while_all_sessions_are_in_use(
    remote: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAXIMUM_SESSIONS", 1)
    references = ("mcp:files.who", "mcp:files.hang")
    async with host(per_user(remote), references=references) as hosted:
        call, _ = hosted.start_call("hang", user=ANN)
        await wait_until(lambda: "tools/call" in remote.methods)
        text, failed = await hosted.call("who", user=BOB)
        assert failed
        assert text.endswith("all of its 1 sessions are in use")
        remote.released.set()
        assert await hosted.call_result(call) == ("done", False)
