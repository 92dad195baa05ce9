"""Agents, teams and workflows of agno on a server."""
