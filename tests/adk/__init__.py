"""Agents of Google ADK on a server in their environment."""
