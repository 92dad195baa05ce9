"""agentctl: the server of an agent platform and its admin tool, in one command.

The modules here have a path that users import (`agents`, `langchain`, `pydantic_ai`, `agno`,
`openai_agents`; docs/python.md), or serve every package: `errors`, `extensions`.
`create_app` is the server in an application of the user (docs/own-routes.md).
The names of this package are loaded on first use, so that the command line starts without them.
"""

from __future__ import annotations

# The name of `typing`, which takes longer to import than all modules before `main` together. An
# interrupt before `main` is a traceback of Python. Type checkers treat the name as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Any, TypeVar

    from fastapi import FastAPI
    from fastapi.params import Depends
    from starlette.requests import HTTPConnection, Request

    from agentctl.agents import (
        Decision,
        File,
        Memories,
        Memory,
        Message,
        Output,
        Progress,
        Rejected,
        RunContext,
        StepFailed,
        Thinking,
        ToolCompleted,
        ToolStarted,
        Usage,
        tool,
    )
    from agentctl.auth.principal import Principal
    from agentctl.config.settings import Settings
    from agentctl.interface.operations import Operations
    from agentctl.runtime.models.access import read_tool_result
    from agentctl.runtime.models.provider import http_client
    from agentctl.work.run_scope import outside_run

    T = TypeVar("T")

    # The server imports this package, so these are declared again, not imported.

    def create_app(
        config: str | os.PathLike[str] | Settings | None = None,
        *,
        title: str = "agentctl",
        lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any] | None]]
        | None = None,
        dependencies: Sequence[Depends] | None = None,
    ) -> FastAPI: ...

    def public(endpoint: T) -> T: ...

    async def current_user(request: HTTPConnection) -> Principal: ...

    def operations(request: HTTPConnection) -> Operations: ...

    def require(scope: str) -> Callable[[Request, Principal], Awaitable[Principal]]: ...


__all__ = [
    "INTERFACE_VERSION",
    "Decision",
    "File",
    "Memories",
    "Memory",
    "Message",
    "Output",
    "Principal",
    "Progress",
    "Rejected",
    "RunContext",
    "StepFailed",
    "Thinking",
    "ToolCompleted",
    "ToolStarted",
    "Usage",
    "__version__",
    "create_app",
    "current_user",
    "http_client",
    "operations",
    "outside_run",
    "public",
    "read_tool_result",
    "require",
    "tool",
]

__version__ = "0.2.1"

INTERFACE_VERSION = "2.7.2"
"""Version of the HTTP API, `info.version` of the OpenAPI document (docs/contract.md "Routes")."""

_ACCESS = "agentctl.server.access"

_MODULES = dict.fromkeys(__all__, "agentctl.agents") | {
    "Principal": "agentctl.auth.principal",
    "create_app": "agentctl.server.app",
    "current_user": _ACCESS,
    "http_client": "agentctl.runtime.models.provider",
    "operations": _ACCESS,
    "outside_run": "agentctl.work.run_scope",
    "public": _ACCESS,
    "read_tool_result": "agentctl.runtime.models.access",
    "require": _ACCESS,
}
"""The modules of the public names."""


def __getattr__(name: str) -> Any:
    """Load a name of the public interface."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
