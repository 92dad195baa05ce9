"""The application: alone, under a `root_path`, or mounted in another one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from fastapi import FastAPI
from starlette.types import ASGIApp

from agentctl import INTERFACE_VERSION
from agentctl.server.authentication import AuthenticationMiddleware, CrossOriginMiddleware
from agentctl.server.openapi.document import TITLE, build_document
from agentctl.server.openapi.pages import build_operations as docs_operations
from agentctl.server.routes import build_all_operations
from agentctl.server.routing import Dispatcher, check_routes
from agentctl.server.state import AppState

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["create_app", "running"]


class _Application(FastAPI):
    """FastAPI for its declarations and its document; requests go straight to their operation."""

    def build_middleware_stack(self) -> ASGIApp:
        routes = check_routes(self.routes)
        stack: ASGIApp = Dispatcher(routes, otherwise=self.router)
        for middleware, args, kwargs in reversed(self.user_middleware):
            stack = middleware(stack, *args, **kwargs)
        return AuthenticationMiddleware(stack, _get_app_state(self))


def create_app(settings: Settings) -> FastAPI:
    """The application for a configuration. It opens its databases when its lifespan begins.

    Mounted in another application it has no lifespan of its own: run it with `running` there.

    Raises:
        RuntimeError: an operation has no row in the policy table.
    """
    app = _Application(
        title=TITLE,
        version=INTERFACE_VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # asked of every request
        lifespan=running,
    )
    app.router.routes.extend([*build_all_operations(), *docs_operations()])
    operations = check_routes(app.routes)
    app.state.door = AppState(settings, description=build_document(operations))
    if settings.server.cors_origins:
        app.add_middleware(CrossOriginMiddleware, origins=settings.server.cors_origins)
    return app


@contextlib.asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[None]:
    """Open what the application serves, and close it at the end; live runs are cancelled then.

        @contextlib.asynccontextmanager
        async def lifespan(host):
            async with agentctl.server.running(app):
                yield

    Raises:
        Unavailable: a database is missing, unreadable or not one of ours.
        SchemaMismatch: a database is older or newer than this code.
        InvalidKey: the verification keys are refused, or there are none.
        InvalidConfiguration: a tool cannot be used.
        RuntimeError: a route has no row in the policy table.
    """
    from agentctl.server.observability.log import log_request
    from agentctl.server.refusals import AuthenticationFailureCounter
    from agentctl.service.service import Service

    check_routes(app.routes)
    door = _get_app_state(app)
    async with Service.open(door.settings, create=True) as service:
        verifier = service.verifier
        await service.prepare()
        async with AuthenticationFailureCounter(service.hosting.audit).flush_on_exit() as refusals:
            door.service, door.verifier, door.refusals = service, verifier, refusals
            door.request_observers = [log_request]
            try:
                with verifier.watch_key_files():
                    yield
            finally:
                door.service = None


def _get_app_state(app: FastAPI) -> AppState:
    return cast(AppState, app.state.door)
