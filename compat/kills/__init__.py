"""AgentOS and LangGraph, killed in a call as agentctl is in `tests.lab`."""
