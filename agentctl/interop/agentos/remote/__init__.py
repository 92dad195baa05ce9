"""The adapter to servers of AgentOS (package `agno`), releases 2.7 to 3.1 (docs/agentos.md)."""

from agentctl.interop.agentos.remote.faults import Fault, list_faults
from agentctl.interop.agentos.remote.operations import AgentOSOperations
from agentctl.interop.agentos.remote.server import AgentOS, recognize

__all__ = ["AgentOS", "AgentOSOperations", "Fault", "list_faults", "recognize"]
