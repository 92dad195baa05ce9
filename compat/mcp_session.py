"""Operations of clients of MCP in Python, versions 1 and 2 of the package mcp.

    python mcp_session.py WORK CLIENT

WORK is a file with JSON: the URL of the endpoint, tokens, and the URL of the model endpoint. The
last line of the output is JSON: the failure of each operation, or null.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import mcp
from mcp import ClientSession, types
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

IS_FIRST = not hasattr(mcp, "MCPError")

if IS_FIRST:
    import httpx as http
    from mcp import McpError as ProtocolError
else:
    import httpx2 as http  # type: ignore[no-redef]
    from mcp import MCPError as ProtocolError  # type: ignore[no-redef, assignment]

LIMIT_SECONDS = 40.0
PATIENCE = 15.0

WORK: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())

Operation = Callable[[], Awaitable[None]]


async def accept(context: Any, params: Any) -> Any:
    """Answer a question of the server: approve."""
    return types.ElicitResult(action="accept", content={"decision": "approve"})


@asynccontextmanager
async def open_session(
    token: str = "token", auth: Any = None, **options: Any
) -> AsyncIterator[Any]:
    """Open a session with `initialize`."""
    headers = {} if auth is not None else {"Authorization": f"Bearer {WORK[token]}"}
    async with http.AsyncClient(headers=headers, auth=auth, timeout=30) as client:
        transport: Any = streamable_http_client(f"{WORK['url']}/mcp", http_client=client)
        async with transport as streams, ClientSession(*streams[:2], **options) as session:
            await session.initialize()
            yield session


def is_error(result: Any) -> bool:
    """Return True for the result of a call that failed."""
    return bool(result.isError if IS_FIRST else result.is_error)


def structured(result: Any) -> Any:
    """Return the structured content of a result."""
    return result.structuredContent if IS_FIRST else result.structured_content


def text(result: Any) -> str:
    """Return the text of a result."""
    return str(result.content[0].text)


def count_open() -> int:
    """Return the number of open calls of models."""
    with urllib.request.urlopen(f"{WORK['model']}/open", timeout=10) as answer:
        return int(json.load(answer)["open"])


async def wait_for_open(number: int, seconds: float = PATIENCE) -> None:
    """Wait until this number of calls of models is open."""
    deadline = asyncio.get_running_loop().time() + seconds
    while (found := count_open()) != number:
        assert asyncio.get_running_loop().time() < deadline, f"{found} open, not {number}"
        await asyncio.sleep(0.05)


async def settle() -> int:
    """Wait for the end of the calls of earlier operations, and return the number of open ones."""
    await wait_for_open(0)
    return 0


async def connect() -> None:
    async with open_session() as session:
        await session.send_ping()


async def list_tools() -> None:
    async with open_session("narrow") as session:
        names = {tool.name for tool in (await session.list_tools()).tools}
    assert names >= {"agent_echo", "list_sessions"}, names
    assert "agent_hang" not in names


async def call_agent() -> None:
    async with open_session() as session:
        result = await session.call_tool("agent_echo", {"message": "hello"})
    assert (text(result), is_error(result)) == ("hello", False)


async def continued_session() -> None:
    async with open_session() as session:
        first = await session.call_tool("agent_history", {"message": "one"})
        given = {"message": "two", "session_id": structured(first)["session_id"]}
        second = await session.call_tool("agent_history", given)
    assert [it[1] for it in json.loads(text(second)) if it[0] == "user"] == ["one", "two"]


async def failed_run() -> None:
    async with open_session() as session:
        result = await session.call_tool("agent_http-500", {"message": "x"})
    assert is_error(result)
    assert "MODEL_UNAVAILABLE" in text(result)


async def invalid_arguments() -> None:
    async with open_session() as session:
        for given in ({}, {"message": 5}, {"message": "x", "more": "y"}):
            assert is_error(await session.call_tool("agent_echo", given))


async def unknown_tool() -> None:
    failure = ""
    async with open_session() as session:
        try:
            await session.call_tool("agent_none", {"message": "x"})
        except ProtocolError as error:
            failure = str(error)
    assert "no such tool" in failure


async def read_sessions() -> None:
    async with open_session() as session:
        ran = structured(await session.call_tool("agent_echo", {"message": "read me"}))
        detail = await session.call_tool("get_session", {"session_id": ran["session_id"]})
        assert json.loads(text(detail))["session_id"] == ran["session_id"]
        page = json.loads(text(await session.call_tool("list_sessions", {})))
        assert page["data"]


async def progress() -> None:
    seen: list[tuple[float, str | None]] = []

    async def note(number: float, total: float | None, message: str | None) -> None:
        seen.append((number, message))

    async with open_session() as session:
        call = asyncio.create_task(
            session.call_tool("agent_trickle", {"message": "x"}, progress_callback=note)
        )
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while len(seen) < 3:
            assert asyncio.get_running_loop().time() < deadline, seen
            await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers)), numbers
    assert "characters" in str(seen[2][1]), seen


async def cancelled_call() -> None:
    before = await settle()
    async with open_session() as session:
        call = asyncio.create_task(session.call_tool("agent_hang", {"message": "x"}))
        await wait_for_open(before + 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await wait_for_open(before, 5.0)


async def timed_out_call() -> None:
    before = await settle()
    limit: Any = timedelta(seconds=2) if IS_FIRST else 2.0
    async with open_session() as session:
        call = session.call_tool("agent_hang", {"message": "x"}, read_timeout_seconds=limit)
        try:
            await call
        except ProtocolError:
            await wait_for_open(before, 5.0)
            return
    raise AssertionError("no timeout")


async def leave_session() -> None:
    before = await settle()
    async with open_session() as session:
        call = asyncio.create_task(session.call_tool("agent_hang", {"message": "x"}))
        await wait_for_open(before + 1)
    call.cancel()  # version 1 does not end it
    await asyncio.gather(call, return_exceptions=True)
    await wait_for_open(before)


async def approval() -> None:
    async with open_session(elicitation_callback=accept) as session:
        result = await session.call_tool("agent_payer", {"message": "user"})
    assert (text(result), is_error(result)) == ("Results: paid", False), text(result)


async def wrong_token() -> None:
    failure = ""
    try:
        async with open_session("wrong"):
            pass
    except (Exception, BaseExceptionGroup) as error:
        failure = describe(error)
    assert "401" in failure or "Invalid or expired credential" in failure, failure


def describe(error: BaseException) -> str:
    """Return the texts of an error, or of the errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


class Storage:
    """Tokens in memory."""

    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


async def oauth_sign_in() -> None:
    seen: dict[str, list[str]] = {}

    async def redirect(url: str) -> None:
        async with http.AsyncClient() as browser:
            answer = await browser.get(url)
        seen.update(parse_qs(urlsplit(answer.headers["location"]).query))

    async def call_back() -> Any:
        if IS_FIRST:
            return seen["code"][0], seen["state"][0]
        from mcp.shared.auth import AuthorizationCodeResult

        return AuthorizationCodeResult(code=seen["code"][0], state=seen["state"][0])

    metadata = {"client_name": "test", "redirect_uris": ["http://127.0.0.1:9/back"]}
    options = OAuthClientMetadata.model_validate(metadata)
    url = f"{WORK['url']}/mcp"
    auth = OAuthClientProvider(url, options, Storage(), redirect, call_back)
    async with open_session(auth=auth) as session:
        result = await session.call_tool("agent_echo", {"message": "signed in"})
    assert text(result) == "signed in"


@asynccontextmanager
async def open_client(**options: Any) -> AsyncIterator[Any]:
    """Open a client of the protocol 2026-07-28."""
    from mcp import Client

    headers = {"Authorization": f"Bearer {WORK['token']}"}
    async with http.AsyncClient(headers=headers, timeout=30) as client:
        transport: Any = streamable_http_client(f"{WORK['url']}/mcp", http_client=client)
        async with Client(transport, **options) as opened:
            assert opened.protocol_version == "2026-07-28"
            yield opened


async def modern_list() -> None:
    async with open_client() as client:
        assert "workflow_line" in {tool.name for tool in (await client.list_tools()).tools}


async def modern_call() -> None:
    async with open_client() as client:
        assert text(await client.call_tool("agent_echo", {"message": "hello"})) == "hello"


async def modern_progress() -> None:
    seen: list[float] = []

    async def note(number: float, total: float | None, message: str | None) -> None:
        seen.append(number)

    async with open_client() as client:
        call = asyncio.create_task(
            client.call_tool("agent_trickle", {"message": "x"}, progress_callback=note)
        )
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while len(seen) < 2:
            assert asyncio.get_running_loop().time() < deadline, seen
            await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert seen[:2] == [1, 2]


async def modern_cancel() -> None:
    before = await settle()
    async with open_client() as client:
        call = asyncio.create_task(client.call_tool("agent_hang", {"message": "x"}))
        await wait_for_open(before + 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await wait_for_open(before)


async def modern_approval() -> None:
    async with open_client(elicitation_callback=accept) as client:
        result = await client.call_tool("agent_payer", {"message": "user"})
    assert text(result) == "Results: paid", text(result)


SESSION = (
    connect, list_tools, call_agent, continued_session, failed_run, invalid_arguments,
    unknown_tool, read_sessions, progress, cancelled_call, timed_out_call, leave_session, approval,
    wrong_token, oauth_sign_in,
)  # fmt: skip

MODERN = (modern_list, modern_call, modern_progress, modern_cancel, modern_approval)


async def try_all(operations: tuple[Operation, ...]) -> dict[str, str | None]:
    """Execute operations; return the failure of each, or None."""
    found: dict[str, str | None] = {}
    for operation in operations:
        name = getattr(operation, "__name__", "")
        try:
            await asyncio.wait_for(operation(), LIMIT_SECONDS)
            found[name] = None
        except (Exception, BaseExceptionGroup) as error:
            found[name] = describe(error)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(try_all({"session": SESSION, "client": MODERN}[sys.argv[2]]))))
