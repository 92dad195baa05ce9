"""Tools of MCP servers: connections, processes, untrusted definitions and results (docs/mcp.md)."""
