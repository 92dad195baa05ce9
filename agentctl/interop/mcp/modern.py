"""The server for the protocol 2026-07-28: requests without a session, read by the `mcp` library.

A client cancels a call by closing its connection, so any process serves each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Message, Send

import agentctl
from agentctl.config.settings import Settings
from agentctl.interop.mcp.client import CallingClient, CallTool, ListTools, NoSuchTool
from agentctl.interop.mcp.tools import INSTRUCTIONS
from agentctl.runtime.mcp.library import to_json
from agentctl.server.answers import Call

Context = ServerRequestContext[Any, Any]

_DISCONNECTED_KEY = "agentctl.mcp.disconnected"


class ModernServer:
    """The server of one application."""

    def __init__(self, settings: Settings, list_tools: ListTools, call_tool: CallTool) -> None:
        self._settings = settings
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
            server, stateless=True, max_request_body_size=settings.limits.body_bytes
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the block is active. It can be entered once."""
        async with self._manager.run():
            yield

    async def respond(self, call: Call, send: Send) -> None:
        """Respond to a request of an identified caller."""
        disconnected = call.scope[_DISCONNECTED_KEY] = asyncio.Event()

        async def watched() -> Message:
            message = await call.receive()
            if message["type"] == "http.disconnect":
                disconnected.set()
            return message

        await self._manager.handle_request(call.scope, watched, send)

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = await self._list(Call(cast(Request, context.request).scope))
        return types.ListToolsResult.model_validate({"tools": tools})

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        call = Call(cast(Request, context.request).scope)
        session = context.session
        capabilities = session.client_capabilities
        elicitation = capabilities.elicitation if capabilities is not None else None

        takes_forms = False
        if elicitation is not None:
            # A client that names no mode has the form mode only (protocol 2025-11-25).
            takes_forms = elicitation.form is not None or elicitation.url is None

        async def report(number: int, text: str) -> None:
            await session.report_progress(number, message=text)

        answers = params.input_responses or {}
        client = CallingClient(
            disconnected=call.scope[_DISCONNECTED_KEY],
            detaches=self._settings.server.on_disconnect == "detach",
            report=report if context.meta and "progress_token" in context.meta else None,
            takes_questions=takes_forms,
            state=params.request_state,
            answers={key: to_json(answer) for key, answer in answers.items()},
        )

        try:
            result = await self._call(call, params.name, params.arguments, client)
        except NoSuchTool:
            raise MCPError(types.INVALID_PARAMS, NoSuchTool.TEXT) from None

        if "inputRequests" in result:
            return types.InputRequiredResult.model_validate(result)
        return types.CallToolResult.model_validate(result)
