"""The adapter to servers of AgentOS (package `agno`), releases 2.7 to 3.1 (docs/agentos.md)."""
