"""The adapter to servers of AgentOS (package `agno`), releases 2.7 to 3.1 (docs/agentos.md)."""

from agentctl.remote.agentos.faults import Fault, list_faults
from agentctl.remote.agentos.operations import AgentOSOperations
from agentctl.remote.agentos.server import AgentOS, recognize

__all__ = ["AgentOS", "AgentOSOperations", "Fault", "list_faults", "recognize"]
