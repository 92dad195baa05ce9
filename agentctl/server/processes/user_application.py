"""The application of `agentctl serve --app`, and the lifespan of its user."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from agentctl.errors import AgentctlError, InternalError, InvalidConfiguration, UsageError
from agentctl.runtime.imports import UnusableObject, find_place, load_object
from agentctl.server.app import Application

SHUTDOWN_SECONDS = 8
"""Time for the lifespan of the user to end."""


def load_application(reference: str) -> Application:
    """Import the application that `module:name` names, from the current folder or an installation.

    Raises:
        UsageError: the module cannot be imported, or has no application of `agentctl.create_app`.
        AgentctlError: the error of `create_app`.
    """
    try:
        app = load_object(reference, Path.cwd(), "in the current folder")
    except UnusableObject as failure:
        if isinstance(failure.__cause__, AgentctlError):
            raise failure.__cause__ from None
        raise UsageError(
            f"--app {reference} cannot be used",
            cause=failure.what,
            hint=failure.hint or "name a module and its application: --app my_module:app",
        ) from None

    if not isinstance(app, Application):
        raise UsageError(
            f"--app {reference} is not an application of agentctl.create_app",
            cause=f"it is an object of the type {type(app).__name__}",
            hint="write in the module: app = agentctl.create_app()",
        )
    return app


@contextlib.asynccontextmanager
async def run_lifespan(app: Application) -> AsyncIterator[Mapping[str, Any]]:
    """Run the lifespan of the user while the block lasts; yield the state of its requests.

    Raises:
        InvalidConfiguration: its start failed.
        InternalError: its end failed, or took longer than `SHUTDOWN_SECONDS`.
    """
    lifespan = app.router.lifespan_context(app)
    try:
        state = await lifespan.__aenter__()
    except AgentctlError:
        raise
    except Exception as error:
        hint = "correct the lifespan of the application"
        raise InvalidConfiguration(_describe("start", error), hint=hint) from error

    try:
        yield state or {}
    finally:
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await lifespan.__aexit__(None, None, None)
        except Exception as error:
            raise InternalError(_describe("end", error)) from error


def _describe(step: str, error: Exception) -> str:
    place = find_place(error, Path.cwd())
    where = f" at {place}" if place else ""
    return f"the lifespan of the application failed at its {step}: {type(error).__name__}{where}"
