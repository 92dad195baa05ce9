"""The server of MCP of the `mcp` library, for its versions 1 and 2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentctl.config.settings import Settings
from agentctl.runtime.mcp.library import IS_FIRST

INSTRUCTIONS = "Agents and teams as tools. Pass session_id of a result to continue a conversation."

ListTools = Callable[[Request], Awaitable[list[dict[str, Any]]]]
"""Returns the tools of the caller of a request, as JSON of the protocol."""

CallTool = Callable[[Request, str, dict[str, Any] | None], Awaitable[dict[str, Any]]]
"""Calls a tool by its name, with its arguments; returns the result as JSON of the protocol."""


class NoSuchTool(Exception):
    """The caller of a tool may not use it, or it does not exist."""

    TEXT = "There is no such tool"


class McpServer(Protocol):
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


def build_server(settings: Settings, list_tools: ListTools, call_tool: CallTool) -> McpServer:
    """Build the server. Its tools raise `NoSuchTool`."""
    if IS_FIRST:
        from agentctl.interop.mcp.server_1 import FirstServer

        return FirstServer(settings, list_tools, call_tool)
    from agentctl.interop.mcp.server_2 import SecondServer

    return SecondServer(settings, list_tools, call_tool)
