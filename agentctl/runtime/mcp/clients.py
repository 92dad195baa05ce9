"""Clients of the `mcp` library on an open connection, for both of its versions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from agentctl.runtime.mcp.library import IS_FIRST, ListedTool, OnChange, Transport

if TYPE_CHECKING:
    from agentctl.runtime.mcp.questions import McpAnswers
    from agentctl.runtime.mcp.watched import WatchedCall


class McpClient(Protocol):
    """A client on an open connection.

    Attributes:
        version: the version of the protocol.
        server: name and version of the server.
        has_tools: True if the server lists tools.
    """

    version: str
    server: str
    has_tools: bool

    async def list_tools(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        """Return a page of tools, and the cursor of the next one.

        Raises:
            ProtocolError, RuntimeError: the server refuses it, or the connection has ended.
            pydantic.ValidationError: the page does not follow the protocol.
        """
        ...

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        watched: WatchedCall,
        answers: McpAnswers | None,
        seconds: float,
    ) -> dict[str, Any]:
        """Call a tool, and return the result as JSON. A cancel is sent to the server.

        Raises:
            ProtocolError, RuntimeError: the server refuses it, or the connection has ended.
            pydantic.ValidationError: the result does not follow the protocol.
        """
        ...

    async def watch_changes(self) -> None:
        """Report changes of the list of tools, where the protocol sends them on request only."""
        ...


def open_client(
    transport: Transport, name: tuple[str, str], seconds: float, on_change: OnChange
) -> AbstractAsyncContextManager[McpClient]:
    """Connect through a transport.

    Args:
        name: name and version of this client.
        seconds: maximum time of a request.
        on_change: called when the server reports that its tools have changed.
    """
    if IS_FIRST:
        from agentctl.runtime.mcp import client_1

        return client_1.open_client(transport, name, seconds, on_change)
    from agentctl.runtime.mcp import client_2

    return client_2.open_client(transport, name, seconds, on_change)
