"""The table `[mcp_endpoint]`, and the path of the face."""

from __future__ import annotations

from dataclasses import dataclass

MCP_PATH = "/mcp"


@dataclass(frozen=True, slots=True)
class McpEndpoint:
    """The table `[mcp_endpoint]`: agents and teams as tools for clients of MCP (docs/mcp.md)."""

    enabled: bool = False
