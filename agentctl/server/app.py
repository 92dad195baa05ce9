"""The ASGI application: alone, under a `root_path`, or mounted in another application."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import cast

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from agentctl.config.settings import Settings
from agentctl.extensions import load_extensions
from agentctl.server.authentication import AuthenticationMiddleware, CrossOriginMiddleware
from agentctl.server.openapi import pages
from agentctl.server.routes import build_all_operations
from agentctl.server.routing import Dispatcher, Face, Operation, check_routes
from agentctl.server.state import AppState


class ServedApplication(Starlette):
    """Starlette with the dispatcher of `routing` in place of its router.

    Attributes:
        root_path: the path that a proxy serves the application under, if the ASGI server does not
            set it.
        faces: the interfaces of other systems, the outermost first.
    """

    root_path = ""
    faces: Sequence[Face] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.root_path:
            scope["root_path"] = self.root_path
        # Not `super()`: FastAPI's adds a fifth to the time of a small request, for its telemetry.
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        state = get_app_state(self)
        stack: ASGIApp = self.build_dispatcher()
        for face in reversed(self.faces):
            stack = face.wrap(stack)
        for middleware, args, kwargs in reversed(self.user_middleware):
            stack = middleware(stack, *args, **kwargs)
        if origins := state.settings.server.cors_origins:
            stack = CrossOriginMiddleware(stack, origins)
        stack = AuthenticationMiddleware(stack, state)
        for face in reversed(self.faces):
            stack = face.wrap_errors(stack)
        return stack

    def build_dispatcher(self) -> Dispatcher:
        """Return the innermost application."""
        return Dispatcher(check_routes(self.routes), otherwise=self.router)

    def check(self) -> None:
        """Check the routes before the start."""
        check_routes(self.routes)

    def build_document(self, operations: Sequence[Operation]) -> bytes:
        """Return the OpenAPI document as JSON."""
        from agentctl.server.openapi.document import build_document

        enabled = get_app_state(self).settings.authorization.enabled
        return build_document(operations, authorization=enabled)


def create_app(settings: Settings) -> ServedApplication:
    """Return the application for a configuration. Its lifespan opens the databases.

    A mounted application has no lifespan: use `running` in the host's.

    Raises:
        RuntimeError: an operation has no row in the policy table.
    """
    app = ServedApplication(lifespan=running)
    app.router.routes.extend(configure(app, settings))
    return app


def configure(app: ServedApplication, settings: Settings) -> list[Operation]:
    """Set the state and the faces of an application, and return the operations that it serves."""
    routes = check_routes([*build_all_operations(), *pages.build_operations()])

    documents: list[bytes] = []
    building = threading.Lock()

    def build_openapi_document() -> bytes:
        with building:  # calls that come together wait for the first one
            if not documents:
                documents.append(app.build_document(routes))
        return documents[0]

    served = routes
    faces: list[Face] = []
    for extension in load_extensions():
        served = extension.adapt_operations(served, settings) or served
        if (face := extension.build_face(settings)) is not None:
            faces.append(face)
    app.faces = faces
    app.state.agentctl = AppState(settings, build_openapi_document)
    return served


@contextlib.asynccontextmanager
async def running(app: ServedApplication) -> AsyncIterator[None]:
    """Open the databases of the application; at the end cancel live runs and close them.

        @contextlib.asynccontextmanager
        async def lifespan(host):
            async with agentctl.server.running(app):
                yield

    Raises:
        Unavailable: a database is missing, unreadable or not a database of agentctl.
        SchemaMismatch: the schema of a database is older or newer than this version.
        InvalidKey: the verification keys are rejected, or there are none.
        InvalidConfiguration: a tool cannot be used.
        RuntimeError: a route has no row in the policy table.
    """
    from agentctl.server.observability.log import log_request
    from agentctl.service.service import Service

    app.check()
    state = get_app_state(app)
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service.open(state.settings, create=True))
        verifier = service.hosting.verifier()
        await service.prepare()
        state.service, state.verifier = service, verifier
        state.request_observers = [log_request]
        for face in app.faces:
            await stack.enter_async_context(face.running())
        try:
            with verifier.watch_key_files():
                yield
        finally:
            state.service, state.stopped = None, True


def get_app_state(app: Starlette) -> AppState:
    return cast(AppState, app.state.agentctl)
