"""Peers that send as much as they can: a model endpoint, an MCP program, and agents in code."""
