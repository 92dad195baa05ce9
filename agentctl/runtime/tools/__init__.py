"""Tools of agents: functions, memories and delegation.

Tools of MCP servers are in `runtime/mcp`.
"""
