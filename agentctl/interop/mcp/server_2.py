"""The server of version 2 of the `mcp` library.

With one worker process a client of an older protocol has a session of MCP, so that it can cancel
its calls. A session of MCP belongs to one worker, so with several workers there are none, and such
a client cancels by closing the connection. Newer protocols have no sessions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import agentctl
from agentctl.config.settings import Settings
from agentctl.interop.mcp import sessions
from agentctl.interop.mcp.tools import INSTRUCTIONS, CallTool, ListTools, NoSuchTool
from agentctl.server.state import CALLER_KEY, Caller

Context = ServerRequestContext[Any, Any]


class SecondServer:
    """A server of MCP; see `face.LibraryServer`."""

    def __init__(self, settings: Settings, list_tools: ListTools, call_tool: CallTool) -> None:
        self._list = list_tools
        self._call = call_tool
        server: Server[Any] = Server(
            settings.server.id,
            version=agentctl.__version__,
            title=settings.server.name,
            instructions=INSTRUCTIONS,
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

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER_KEY]
        assert caller.principal is not None
        # A session of MCP is for the caller that opened it.
        identity, subject = caller.principal.identity, caller.principal.subject
        token = AccessToken(token="", client_id=identity, subject=subject, scopes=[])
        scope["user"] = AuthenticatedUser(token)
        if self._manager.stateless:
            await self._manager.handle_request(scope, receive, send)
            return
        async with self._sessions.serving(scope, send, identity) as send_watched:
            await self._manager.handle_request(scope, receive, send_watched)

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = await self._list(cast(Request, context.request))
        return types.ListToolsResult.model_validate({"tools": tools})

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        request = cast(Request, context.request)
        try:
            result = await self._call(request, params.name, params.arguments)
        except NoSuchTool:
            raise MCPError(types.INVALID_PARAMS, NoSuchTool.TEXT) from None
        return types.CallToolResult.model_validate(result)
