"""The interface of AgentOS, for its clients, on the operations of this server (docs/agentos.md).

`adapt_operations` is the only place where the server uses this package, with
`server.compatibility = "agentos"`. It replaces the endpoints whose requests or responses differ
from those of AgentOS. Paths, policy, audit log and effects are those of the replaced operations.
"""

from __future__ import annotations

from agentctl.interop.agentos.server.adapter import adapt_operations

__all__ = ["adapt_operations"]
