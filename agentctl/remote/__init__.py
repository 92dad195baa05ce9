"""The remote backend: the operations of a server, over HTTP.

Other servers, such as those of AgentOS, have adapters in `interop`.
"""

from agentctl.remote.client import RemoteOperations, open_remote

__all__ = ["RemoteOperations", "open_remote"]
