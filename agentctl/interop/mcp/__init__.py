"""The face for clients of the Model Context Protocol (docs/mcp.md "Agents as tools")."""
