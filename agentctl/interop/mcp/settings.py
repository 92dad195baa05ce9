"""The table `[mcp_endpoint]`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class McpEndpoint:
    """The table `[mcp_endpoint]`: agents and teams as tools for clients of MCP (docs/mcp.md)."""

    enabled: bool = False
