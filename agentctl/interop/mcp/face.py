"""The endpoint `/mcp`: streamable HTTP, inside of the authentication.

With one worker process a client of an older protocol has a session of MCP, so that it can cancel
its calls. A session of MCP belongs to one worker, so with several workers there are none, and such
a client cancels by closing the connection. Newer protocols have no sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import mcp_types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

import agentctl
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError, Forbidden, MethodNotAllowed, Unauthenticated
from agentctl.interop.mcp import calls, sessions
from agentctl.interop.mcp.settings import MCP_PATH
from agentctl.interop.mcp.tools import RunTool, build_tools, check_arguments, is_allowed
from agentctl.records.log_context import add_log_context, set_log_context
from agentctl.server.faces import Face, MatchedRoute
from agentctl.server.state import CALLER_KEY, Call, Caller

_DISCONNECTED_KEY = "agentctl.mcp.disconnected"

_INSTRUCTIONS = "Agents and teams as tools. Pass session_id of a result to continue a conversation."

_NO_TOOL = "There is no such tool"

Context = ServerRequestContext[Any, Any]


class McpFace(Face):
    """The server of MCP of one application."""

    def __init__(self, settings: Settings) -> None:
        self._tools = build_tools(settings)
        server: Server[Any] = Server(
            settings.server.id,
            version=agentctl.__version__,
            title=settings.server.name,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._manager = StreamableHTTPSessionManager(
            server,
            stateless=settings.server.workers > 1,
            max_request_body_size=settings.limits.body_bytes,
            session_idle_timeout=sessions.IDLE_SECONDS,
            max_sessions=None,
        )
        self._sessions = sessions.McpSessions(self._manager.handle_request)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._manager.run():
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
        # A session of MCP is for the caller that opened it.
        identity, subject = caller.principal.identity, caller.principal.subject
        token = AccessToken(token="", client_id=identity, subject=subject, scopes=[])
        scope["user"] = AuthenticatedUser(token)
        disconnected = scope[_DISCONNECTED_KEY] = asyncio.Event()

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                disconnected.set()
            return message

        if self._manager.stateless:
            await self._manager.handle_request(scope, watched, send)
            return
        async with self._sessions.serving(scope, send, identity) as send_watched:
            await self._manager.handle_request(scope, watched, send_watched)

    async def _list_tools(
        self, context: Context, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        call = _open_call(context)
        assert call.caller.principal is not None
        principal = call.caller.principal
        tools = [tool.build() for tool in self._tools.values() if is_allowed(principal, tool)]
        return mcp_types.ListToolsResult(tools=tools)

    async def _call_tool(
        self, context: Context, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        call = _open_call(context)
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(mcp_types.INVALID_PARAMS, _NO_TOOL)
        try:
            arguments = check_arguments(tool.build(), params.arguments)
            if isinstance(tool, RunTool):
                disconnected = cast(asyncio.Event, call.scope[_DISCONNECTED_KEY])
                return await calls.run(tool, call.operations, arguments, disconnected)
            document = await tool.read(call.operations, arguments)
            return calls.build_result(document.raw.decode())
        except Forbidden:
            # The denial is in the audit log. A tool that is not listed does not exist for a caller.
            raise MCPError(mcp_types.INVALID_PARAMS, _NO_TOOL) from None
        except AgentctlError as error:
            return calls.build_result(error.detail, failed=True)


def _open_call(context: Context) -> Call:
    request = cast(Request, context.request)
    call = Call(request.scope)
    caller = call.caller
    # The task is that of the session of MCP, which an earlier request opened.
    set_log_context(request_id=caller.request_id)
    if caller.principal is not None:
        add_log_context(principal=caller.principal.identity)
    return call
