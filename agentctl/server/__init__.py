"""The HTTP door: it translates between HTTP and the port, and decides nothing else.

    from agentctl.server import create_app, running

`create_app(settings)` makes the application; `async with running(app):` opens what it serves, for
a host application that mounts it. Both are loaded on first use, because FastAPI is heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.server.app import create_app, running

__all__ = ["create_app", "running"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentctl.server import app

    return getattr(app, name)
