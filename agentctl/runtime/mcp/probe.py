"""A single connection to an MCP server, to report its state and its tools."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.config.mcp_servers import is_per_user
from agentctl.runtime.mcp.servers import MESSAGE_FACTOR, require_mcp_package

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.config.settings import Settings


def describe_target(server: McpServer) -> str:
    """Return the command line or the URL of a server."""
    return server.url or " ".join([server.command, *server.args])


async def probe_server(
    settings: Settings, server: McpServer, user_id: str | None, claims: dict[str, Any]
) -> dict[str, Any]:
    """Connect to a server, list its tools, and disconnect.

    Args:
        user_id, claims: the user whose data the header fields contain.

    Returns:
        `id`, `state` (`connected` or `failed`), `reason` (of a failure, else null), `detail` (the
        last line of a program on stderr, else null), `server` (name, version and protocol),
        `seconds`, `tools` (tool records) and `problems` (of tools that are left out).

    Raises:
        InvalidConfiguration: the package for MCP servers is missing.
    """
    require_mcp_package(settings)
    from agentctl.runtime.mcp.connection import McpConnection
    from agentctl.runtime.mcp.definitions import build_tool_list
    from agentctl.runtime.mcp.endpoints import HttpEndpoint, StdioEndpoint
    from agentctl.runtime.mcp.failures import McpUnavailable
    from agentctl.runtime.mcp.values import McpUser

    message_bytes = MESSAGE_FACTOR * settings.limits.tool_result_bytes
    folder = settings.path.parent if settings.path is not None else Path.cwd()
    endpoint = (
        HttpEndpoint(server, McpUser(user_id, claims), message_bytes)
        if server.url
        else StdioEndpoint(server, folder, message_bytes)
    )
    report: dict[str, Any] = {
        "id": server.id,
        "state": "failed",
        "reason": None,
        "detail": None,
        "server": None,
        "seconds": 0.0,
        "tools": [],
        "problems": [],
    }
    started = time.monotonic()
    connection = McpConnection(endpoint, server.call_seconds)
    try:
        await connection.open(server.connect_seconds)
        async with asyncio.timeout(server.connect_seconds):
            listed = await build_tool_list(server, await connection.list_tools())
        report["state"], report["server"] = "connected", connection.description
        report["tools"] = [tool.record() for tool in listed.tools]
        report["problems"] = list(listed.problems)
    except McpUnavailable as failure:
        report["reason"] = str(failure)
        if is_per_user(server) and user_id is None and not claims:
            report["detail"] = "its headers have data of the user: give --user-id or --claim"
    except TimeoutError:
        report["reason"] = "it did not list its tools in time"
    finally:
        await connection.close()
    report["detail"] = report["detail"] or endpoint.detail or None
    report["seconds"] = round(time.monotonic() - started, 3)
    return report
