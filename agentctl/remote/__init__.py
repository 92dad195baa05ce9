"""The port, over HTTP."""

from agentctl.remote.client import RemoteOperations

__all__ = ["RemoteOperations"]
