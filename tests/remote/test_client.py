"""Parts of the requests of the remote client; `tests/contract` has each whole request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.operations import Operations
from agentctl.interface.requests import RunRequest
from agentctl.remote import RemoteOperations, open_remote
from tests.remote.conftest import Serve, answer

Call = Callable[[Operations], Awaitable[Any]]


def _call(url: str, call: Call, token: str | None = None) -> Any:
    async def run() -> Any:
        async with RemoteOperations(url, token) as operations:
            return await call(operations)

    return asyncio.run(run())


PATHS = [
    ("a b/ü?%", "/agents/a%20b%2F%C3%BC%3F%25"),
    ("..", "/agents/%2E%2E"),
    ("\udcff", "/agents/%ED%B3%BF"),
]


@pytest.mark.parametrize(("component_id", "target"), PATHS)
def test_ids_are_quoted_in_paths(serve: Serve, component_id: str, target: str) -> None:
    raw = b' {"a" : "\xc3\xbc"}'
    server = serve(answer(body=raw))
    assert _call(server.url, lambda o: o.components.get("agent", component_id)).raw == raw
    (seen,) = server.seen
    assert (seen.method, seen.target, seen.body) == ("GET", target, b"")
    assert "authorization" not in seen.headers


def test_lone_surrogates_are_escaped_in_bodies(serve: Serve) -> None:
    server = serve(answer(201, b'{"id":1}'))
    _call(server.url, lambda o: o.runs.create("agent", "a", RunRequest("hi \ud800")))
    (seen,) = server.seen
    assert json.loads(seen.body) == {"message": "hi \ud800", "stream": False}


def test_prefix_and_token_are_sent(serve: Serve) -> None:
    server = serve(answer(body=b"[]"))
    _call(server.url + "/mounted/here/", lambda o: o.components.list("team"), "a.b.c")
    (seen,) = server.seen
    assert seen.target == "/mounted/here/teams"
    assert seen.headers["authorization"] == "Bearer a.b.c"
    assert seen.headers["user-agent"].startswith("agentctl/")


def test_loopback_requests_use_no_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = serve(answer(500))
    server = serve(answer())
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("ALL_PROXY", "nonsense://x")
    assert _call(server.url, lambda o: o.system.get_info(), "a.b.c").raw == b"{}"
    assert not proxy.seen


@pytest.mark.parametrize(
    ("info", "is_refused"),
    [
        (b'{"agno_version": "3.1.10", "auth_mode": "none"}', True),
        # A server of agentctl with `server.compatibility`.
        (b'{"agno_version": "2.7.2", "interface_version": "2.7.2"}', False),
        (b"[]", False),
    ],
)
def test_server_of_agentos_is_refused_once_it_is_opened(
    serve: Serve, info: bytes, *, is_refused: bool
) -> None:
    server = serve(answer(body=info))

    async def open_server() -> None:
        async with open_remote(server.url, None):
            pass

    if not is_refused:
        asyncio.run(open_server())
        return
    with pytest.raises(errors.UsageError) as caught:
        asyncio.run(open_server())
    assert caught.value.detail == f"{server.url} is a server of AgentOS, not of agentctl"
    assert "agnoctl" in (caught.value.hint or "")
    assert [request.target for request in server.seen] == ["/info"]
