"""Databases of AgentOS, releases 2 and 3: read, never written (docs/decisions/0061)."""
