"""The endpoint `/mcp`: streamable HTTP, inside of the authentication (docs/decisions/0063).

Requests of protocols before 2026-07-28 are for `handshake`, newer ones for `modern`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError, BadRequest, Forbidden, MethodNotAllowed, Unauthenticated
from agentctl.interop.mcp import calls
from agentctl.interop.mcp.client import Client, NoSuchTool, build_result
from agentctl.interop.mcp.discovery import (
    SIGN_IN_PATHS,
    WELL_KNOWN,
    build_challenge,
    build_metadata,
)
from agentctl.interop.mcp.handshake import VERSIONS, HandshakeServer
from agentctl.interop.mcp.messages import build_error_response
from agentctl.interop.mcp.settings import MCP_PATH
from agentctl.interop.mcp.tools import RunTool, build_tools, check_arguments, is_allowed
from agentctl.records.log_context import add_log_context
from agentctl.runtime.mcp.library import IS_FIRST
from agentctl.server.answers import json_response
from agentctl.server.routing import Face, MatchedRoute, path_below_root
from agentctl.server.state import ERROR_RESPONSE_KEY, Call


class McpFace(Face):
    """The server of MCP of one application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tools = build_tools(settings)
        self._handshake = HandshakeServer(settings, self._list_tools, self._call_tool)
        self._modern: Any = None
        if not IS_FIRST:
            from agentctl.interop.mcp.modern import ModernServer

            self._modern = ModernServer(settings, self._list_tools, self._call_tool)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._modern.running() if self._modern else contextlib.nullcontext():
            yield

    def serves(self, path: str) -> bool:
        return path in (MCP_PATH, *SIGN_IN_PATHS) or path.startswith(WELL_KNOWN)

    def wrap_errors(self, app: ASGIApp) -> ASGIApp:
        async def set_error_response(scope: Scope, receive: Receive, send: Send) -> None:
            if self._is_request(scope) and path_below_root(scope) == MCP_PATH:
                discovery = build_challenge(self._settings, scope)
                scope[ERROR_RESPONSE_KEY] = partial(build_error_response, discovery)
            await app(scope, receive, send)

        return set_error_response

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        caller, path = call.caller, path_below_root(scope)
        if path != MCP_PATH:
            scope["route"] = MatchedRoute("get_mcp_metadata")
            metadata = build_metadata(self._settings, scope, path)
            if call.method not in ("GET", "HEAD"):
                raise MethodNotAllowed(allow=("GET", "HEAD"))
            headers = {"Access-Control-Allow-Origin": "*"}
            await json_response(metadata, headers=headers)(scope, receive, send)
            return
        scope["route"] = MatchedRoute("call_mcp")
        if caller.principal is None:
            raise caller.failure or Unauthenticated()
        if call.method not in ("POST", "DELETE"):
            # Nothing is sent without a request, and an open stream would delay the shutdown.
            raise MethodNotAllowed(allow=("DELETE", "POST"))
        add_log_context(principal=caller.principal.identity)
        version = call.headers.get("mcp-protocol-version")
        if version is None or version in VERSIONS:
            await self._handshake.respond(call, send)
        elif self._modern is None:
            raise BadRequest(f"The protocol version must be one of {', '.join(VERSIONS)}")
        else:
            await self._modern.respond(call, send)

    async def _list_tools(self, call: Call) -> list[dict[str, Any]]:
        assert call.caller.principal is not None
        principal = call.caller.principal
        return [tool.build() for tool in self._tools.values() if is_allowed(principal, tool)]

    async def _call_tool(
        self, call: Call, name: str, values: dict[str, Any] | None, client: Client
    ) -> dict[str, Any]:
        tool = self._tools.get(name)
        if tool is None:
            raise NoSuchTool
        try:
            arguments = check_arguments(tool.build(), values)
            if isinstance(tool, RunTool):
                return await calls.run(tool, call.operations, arguments, client)
            document = await tool.read(call.operations, arguments)
            return build_result(document.raw.decode())
        except Forbidden:
            # The denial is in the audit log. A tool that is not listed does not exist for a caller.
            raise NoSuchTool from None
        except AgentctlError as error:
            return build_result(error.detail, failed=True)
