"""AgentOS: its clients, its servers and its databases (docs/agentos.md)."""
