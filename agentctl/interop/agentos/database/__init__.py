"""Databases of AgentOS, releases 2 and 3: read, never written.

docs/agentos.md "Databases of AgentOS" has the way to open each file.
"""
