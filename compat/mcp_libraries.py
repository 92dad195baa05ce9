"""Operations of libraries with a client of MCP: langchain-mcp-adapters, fastmcp, pydantic-ai, agno.

python mcp_libraries.py WORK LIBRARY, as `mcp_session`
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp_session import WORK, describe, settle, try_all, wait_for_open

URL = f"{WORK['url']}/mcp"
HEADERS = {"Authorization": f"Bearer {WORK['token']}"}


async def open_langchain() -> dict[str, Any]:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    place: Any = {"transport": "streamable_http", "url": URL, "headers": HEADERS}
    client = MultiServerMCPClient({"agents": place})
    return {tool.name: tool for tool in await client.get_tools()}


async def langchain_list() -> None:
    assert {"agent_echo", "team_crew"} <= (await open_langchain()).keys()


async def langchain_call() -> None:
    tools = await open_langchain()
    assert "hello" in str(await tools["agent_echo"].ainvoke({"message": "hello"}))


async def langchain_session() -> None:
    tools = await open_langchain()
    for message in ("one", "two"):
        given = {"message": message, "session_id": f"langchain-{WORK['mark']}"}
        answer = await tools["agent_history"].ainvoke(given)
    assert "one" in str(answer)


async def langchain_failure() -> None:
    tools = await open_langchain()
    try:
        failure = str(await tools["agent_http-500"].ainvoke({"message": "x"}))
    except Exception as error:
        failure = describe(error)
    assert "MODEL_UNAVAILABLE" in failure


async def langchain_cancel() -> None:
    tools = await open_langchain()
    before = await settle()
    call = asyncio.create_task(tools["agent_hang"].ainvoke({"message": "x"}))
    await wait_for_open(before + 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await wait_for_open(before)


def open_fastmcp(auth: Any = None) -> Any:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    headers = {} if auth is not None else HEADERS
    return Client(StreamableHttpTransport(URL, headers=headers, auth=auth))


async def fastmcp_list() -> None:
    async with open_fastmcp() as client:
        assert "agent_echo" in {tool.name for tool in await client.list_tools()}


async def fastmcp_call() -> None:
    async with open_fastmcp() as client:
        result = await client.call_tool("agent_echo", {"message": "hello"})
        assert result.content[0].text == "hello"


async def fastmcp_failure() -> None:
    async with open_fastmcp() as client:
        result = await client.call_tool("agent_http-500", {"message": "x"}, raise_on_error=False)
        assert result.is_error


async def fastmcp_progress() -> None:
    seen: list[float] = []

    async def note(number: float, total: float | None, message: str | None) -> None:
        seen.append(number)

    async with open_fastmcp() as client:
        await client.call_tool("team_crew", {"message": "ask echo"}, progress_handler=note)
    assert seen, "no progress"


async def fastmcp_timeout() -> None:
    before = await settle()
    async with open_fastmcp() as client:
        try:
            await client.call_tool("agent_hang", {"message": "x"}, timeout=2)
        except Exception:
            await wait_for_open(before, 5.0)
            return
    raise AssertionError("no timeout")


async def fastmcp_oauth() -> None:
    import httpx
    from fastmcp.client.auth import OAuth

    class Browser(OAuth):
        async def redirect_handler(self, authorization_url: str) -> None:
            async def follow() -> None:
                async with httpx.AsyncClient(follow_redirects=True) as browser:
                    for _ in range(50):
                        try:
                            await browser.get(authorization_url)
                            return
                        except httpx.ConnectError:  # the page for the redirect is not served yet
                            await asyncio.sleep(0.1)

            self.following = asyncio.create_task(follow())

    async with open_fastmcp(Browser(mcp_url=URL)) as client:
        result = await client.call_tool("agent_echo", {"message": "signed in"})
    assert result.content[0].text == "signed in"


async def pydantic_ai_list() -> None:
    from pydantic_ai.mcp import MCPToolset

    async with MCPToolset(URL, headers=HEADERS) as toolset:
        assert "agent_echo" in {tool.name for tool in await toolset.list_tools()}


async def pydantic_ai_call() -> None:
    from pydantic_ai.mcp import MCPToolset

    async with MCPToolset(URL, headers=HEADERS) as toolset:
        assert "hello" in str(await toolset.direct_call_tool("agent_echo", {"message": "hello"}))


def open_agno() -> Any:
    from agno.tools.mcp import MCPTools, StreamableHTTPClientParams

    place = StreamableHTTPClientParams(url=URL, headers=HEADERS)
    return MCPTools(transport="streamable-http", server_params=place)


async def agno_list() -> None:
    async with open_agno() as tools:
        assert "agent_echo" in tools.functions


async def agno_call() -> None:
    async with open_agno() as tools:
        result = await tools.session.call_tool("agent_echo", {"message": "hello"})
        assert result.content[0].text == "hello"


OPERATIONS: dict[str, Any] = {
    "langchain": (
        langchain_list, langchain_call, langchain_session, langchain_failure, langchain_cancel,
    ),
    "fastmcp": (
        fastmcp_list, fastmcp_call, fastmcp_failure, fastmcp_progress, fastmcp_timeout,
        fastmcp_oauth,
    ),
    "pydantic-ai": (pydantic_ai_list, pydantic_ai_call),
    "agno": (agno_list, agno_call),
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(asyncio.run(try_all(OPERATIONS[sys.argv[2]]))))
