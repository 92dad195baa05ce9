"""The remote backend: the operations of a server, over HTTP."""

from agentctl.remote.client import RemoteOperations, open_remote

__all__ = ["RemoteOperations", "open_remote"]
