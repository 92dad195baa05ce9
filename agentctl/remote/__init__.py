"""The remote backend: the operations of a server, over HTTP."""

from agentctl.remote.client import RemoteOperations

__all__ = ["RemoteOperations"]
