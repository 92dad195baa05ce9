"""agentctl: the server of an agent platform and its admin tool, in one command.

The modules here have a path that users import (`agents`, `langchain`, `pydantic_ai`, `agno`,
`openai_agents`; docs/python.md), or serve every package: `errors`, `light_dataclass`, `extensions`.
The names of this package are loaded on first use, so that the command line starts without them.
"""

from __future__ import annotations

# The name of `typing`, which takes longer to import than all modules before `main` together. An
# interrupt before `main` is a traceback of Python. Type checkers treat the name as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from agentctl.agents import (
        Decision,
        Memories,
        Memory,
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
    from agentctl.runtime.models.provider import http_client
    from agentctl.work.run_scope import outside_run

__all__ = [
    "INTERFACE_VERSION",
    "Decision",
    "Memories",
    "Memory",
    "Output",
    "Progress",
    "Rejected",
    "RunContext",
    "StepFailed",
    "Thinking",
    "ToolCompleted",
    "ToolStarted",
    "Usage",
    "__version__",
    "http_client",
    "outside_run",
    "tool",
]

__version__ = "0.2.1"

INTERFACE_VERSION = "2.7.2"
"""Version of the HTTP API, `info.version` of the OpenAPI document (docs/contract.md "Routes")."""

_PUBLIC = frozenset(__all__) - {"INTERFACE_VERSION", "__version__"}


def __getattr__(name: str) -> Any:
    """Load a name of the public interface."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "http_client":
        from agentctl.runtime.models.provider import http_client

        return http_client
    from agentctl import agents
    from agentctl.work import run_scope

    return getattr(run_scope if name == "outside_run" else agents, name)
