"""The HTTP server: authentication, routing, the OpenAPI document and the server processes.

    from agentctl.server import create_app, running

`create_app(settings)` returns a FastAPI application; `async with running(app):` opens its databases
in a host application that mounts it. Both are imported on first use, because FastAPI and Starlette
take a while to import.
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
