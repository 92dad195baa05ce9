"""The server of version 1 of the `mcp` library: older protocols, without sessions of MCP.

Each request has a separate server, as in the stateless mode of the library. So a client cannot
send a cancel: it ends a call by closing its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from starlette.types import Message, Receive, Scope, Send

import agentctl
from agentctl.config.settings import Settings
from agentctl.event_loop import retrieve_exception
from agentctl.interop.mcp.tools import INSTRUCTIONS, CallTool, ListTools, NoSuchTool
from agentctl.runtime.mcp.library import ProtocolError, types
from agentctl.server.bodies import read_content
from agentctl.server.state import Call


class FirstServer:
    """A server of MCP; see `face.LibraryServer`."""

    def __init__(self, settings: Settings, list_tools: ListTools, call_tool: CallTool) -> None:
        self._list = list_tools
        self._call = call_tool
        server: Any = Server(
            settings.server.id, version=agentctl.__version__, instructions=INSTRUCTIONS
        )
        server.request_handlers[types.ListToolsRequest] = self._list_tools
        server.request_handlers[types.CallToolRequest] = self._call_tool
        self._server = server

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The library reads bodies of any size.
        body: bytes | None = await read_content(Call(scope, receive))

        async def receive_body() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        transport = StreamableHTTPServerTransport(mcp_session_id=None)
        async with transport.connect() as (read, write):
            options = self._server.create_initialization_options()
            work = self._server.run(read, write, options, stateless=True)
            serving = asyncio.create_task(work, name="mcp request")
            serving.add_done_callback(retrieve_exception)
            try:
                await transport.handle_request(scope, receive_body, send)
            finally:
                await transport.terminate()
                serving.cancel()
                await asyncio.wait({serving})

    async def _list_tools(self, request: Any) -> Any:
        tools = await self._list(self._server.request_context.request)
        return types.ServerResult(types.ListToolsResult.model_validate({"tools": tools}))

    async def _call_tool(self, request: Any) -> Any:
        context, params = self._server.request_context, request.params
        try:
            result = await self._call(context.request, params.name, params.arguments)
        except NoSuchTool:
            error = types.ErrorData(code=types.INVALID_PARAMS, message=NoSuchTool.TEXT)
            raise ProtocolError(error) from None
        return types.ServerResult(types.CallToolResult.model_validate(result))
