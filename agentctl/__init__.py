"""agentctl: the server of an agent platform and its admin tool, in one command."""

__all__ = ["INTERFACE_VERSION", "__version__"]

__version__ = "0.1.0"

INTERFACE_VERSION = "2.7.2"
"""Version of the HTTP API, `info.version` of the OpenAPI document (docs/contract.md "Routes")."""
