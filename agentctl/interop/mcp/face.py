"""The endpoint `/mcp`: streamable HTTP, inside of the authentication.

The server of the `mcp` library reads and writes the messages (`server_1` and `server_2`, for its
versions).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError, Forbidden, MethodNotAllowed, Unauthenticated
from agentctl.interop.mcp import calls
from agentctl.interop.mcp.settings import MCP_PATH
from agentctl.interop.mcp.tools import (
    CallTool,
    ListTools,
    NoSuchTool,
    RunTool,
    build_tools,
    check_arguments,
    is_allowed,
)
from agentctl.records.log_context import add_log_context, set_log_context
from agentctl.runtime.mcp.library import IS_FIRST
from agentctl.server.faces import Face, MatchedRoute
from agentctl.server.state import CALLER_KEY, Call, Caller

_DISCONNECTED_KEY = "agentctl.mcp.disconnected"


class LibraryServer(Protocol):
    """A server of MCP."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Serve while the block is active. It can be entered once."""
        ...

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request of an identified caller.

        Raises:
            AgentctlError: the request is refused.
        """
        ...


def _build_server(settings: Settings, list_tools: ListTools, call_tool: CallTool) -> LibraryServer:
    if IS_FIRST:
        from agentctl.interop.mcp.server_1 import FirstServer

        return FirstServer(settings, list_tools, call_tool)
    from agentctl.interop.mcp.server_2 import SecondServer

    return SecondServer(settings, list_tools, call_tool)


class McpFace(Face):
    """The server of MCP of one application."""

    def __init__(self, settings: Settings) -> None:
        self._tools = build_tools(settings)
        self._server = _build_server(settings, self._list_tools, self._call_tool)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._server.running():
            yield

    def serves(self, path: str) -> bool:
        return path == MCP_PATH

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER_KEY]
        scope["route"] = MatchedRoute("call_mcp")
        if caller.principal is None:
            raise caller.failure or Unauthenticated()
        if scope["method"] not in ("POST", "DELETE"):
            # Nothing is sent without a request, and an open stream would delay the shutdown.
            raise MethodNotAllowed(allow=("DELETE", "POST"))
        disconnected = scope[_DISCONNECTED_KEY] = asyncio.Event()

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                disconnected.set()
            return message

        await self._server.respond(scope, watched, send)

    async def _list_tools(self, request: Request) -> list[dict[str, Any]]:
        call = _open_call(request)
        assert call.caller.principal is not None
        principal = call.caller.principal
        return [tool.build() for tool in self._tools.values() if is_allowed(principal, tool)]

    async def _call_tool(
        self, request: Request, name: str, values: dict[str, Any] | None
    ) -> dict[str, Any]:
        call = _open_call(request)
        tool = self._tools.get(name)
        if tool is None:
            raise NoSuchTool
        try:
            arguments = check_arguments(tool.build(), values)
            if isinstance(tool, RunTool):
                disconnected = cast(asyncio.Event, call.scope[_DISCONNECTED_KEY])
                return await calls.run(tool, call.operations, arguments, disconnected)
            document = await tool.read(call.operations, arguments)
            return calls.build_result(document.raw.decode())
        except Forbidden:
            # The denial is in the audit log. A tool that is not listed does not exist for a caller.
            raise NoSuchTool from None
        except AgentctlError as error:
            return calls.build_result(error.detail, failed=True)


def _open_call(request: Request) -> Call:
    call = Call(request.scope)
    caller = call.caller
    # The task is that of the session of MCP, which an earlier request opened.
    set_log_context(request_id=caller.request_id)
    if caller.principal is not None:
        add_log_context(principal=caller.principal.identity)
    return call
