"""Failures of MCP servers. Their texts are for models and operators: no secret, one line."""

from __future__ import annotations


class McpUnavailable(Exception):
    """A server cannot be used now. The text continues "the MCP server files is not available:"."""


class McpCallFailed(Exception):
    """A call got an error instead of a result. The text is that of the server, bounded."""


class McpSessionLost(McpUnavailable):
    """The server has forgotten the session. The call was not executed."""
