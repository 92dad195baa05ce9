"""The private interfaces of libraries that the server uses.

An upgrade that changes one of them fails here first, with its name. uvicorn's are used in
`agentctl.server.transport` only, FastAPI's in `agentctl.server.app` and `routing`.
"""

from __future__ import annotations

import ast
import contextlib
import inspect

import httptools
import httpx2
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from tests.architecture.sources import modules

PROTOCOL = {
    "_start_asgi_task", "_unset_keepalive_if_required", "access_log", "access_logger", "app",
    "app_state", "asgi_version", "client", "connection_lost", "connection_made", "connections",
    "cycle", "data_received", "flow", "headers", "logger", "loop", "on_body", "on_header",
    "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete",
    "parser", "pause_writing", "pipeline", "resume_writing", "root_path", "scheme", "scope",
    "server", "server_state", "timeout_keep_alive", "timeout_keep_alive_handler",
    "timeout_keep_alive_task", "transport",
}  # fmt: skip
"""Attributes of `HttpToolsProtocol` that `connection` and `protocol` use or override."""

CYCLE_PARAMETERS = [
    "self", "scope", "transport", "flow", "logger", "access_logger", "access_log",
    "default_headers", "message_event", "expect_100_continue", "keep_alive", "on_response",
]  # fmt: skip
"""Parameters of `RequestResponseCycle`, which `protocol` passes by position."""

CYCLE = {
    "access_log", "chunked_encoding", "default_headers", "disconnected", "expected_content_length",
    "flow", "keep_alive", "message_event", "more_body", "response_complete", "response_started",
    "scope", "send", "send_500_response", "transport", "waiting_for_100_continue",
}  # fmt: skip
"""Attributes of `RequestResponseCycle` that `cycle` and `protocol` use or override."""

FLOW = {"pause_reading", "resume_reading", "write_paused"}
SERVER = {
    "capture_signals", "config", "force_exit", "main_loop", "on_tick", "serve", "servers",
    "should_exit", "shutdown", "started", "startup",
}  # fmt: skip
STATE = {"connections", "default_headers", "tasks", "total_requests"}
APPLICATION = {"build_middleware_stack", "dependency_overrides", "router", "routes", "state"}
ROUTER = {"app", "default", "lifespan_context", "middleware_stack", "routes"}
ROUTE = {"get_route_handler", "handle", "include_in_schema", "matches", "methods", "path"}
PARSER = {"feed_data", "get_http_version", "get_method", "should_keep_alive", "should_upgrade"}

LOST = "has lost attributes that agentctl uses (agentctl.server.transport or .app): "


def check_attributes(thing: object, names: set[str]) -> None:
    missing = sorted(name for name in names if not hasattr(thing, name))
    assert not missing, f"{type(thing).__name__} {LOST}{', '.join(missing)}"


async def test_uvicorn_has_the_private_interfaces_that_are_used() -> None:
    config = uvicorn.Config(Starlette(), log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.servers = []  # Set by `startup`.
    state = ServerState()
    protocol = httptools_impl.HttpToolsProtocol(config, state, {})
    parameters = inspect.signature(httptools_impl.RequestResponseCycle.__init__).parameters
    assert list(parameters) == CYCLE_PARAMETERS
    cycle = httptools_impl.RequestResponseCycle(*[None] * (len(CYCLE_PARAMETERS) - 1))  # type: ignore[arg-type]
    check_attributes(config, {"load"})
    check_attributes(server, SERVER)
    check_attributes(state, STATE)
    check_attributes(protocol, PROTOCOL)
    check_attributes(cycle, CYCLE)
    check_attributes(httptools_impl.FlowControl, FLOW - {"write_paused"})
    assert "write_paused" in inspect.getsource(httptools_impl.FlowControl)
    assert httptools_impl.STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


def test_httptools_has_the_interfaces_that_are_used() -> None:
    check_attributes(httptools.HttpRequestParser(object()), PARSER)
    assert issubclass(httptools.HttpParserUpgrade, Exception)


def test_fastapi_has_the_private_interfaces_that_are_used() -> None:
    async def endpoint() -> None:
        raise NotImplementedError

    check_attributes(FastAPI(), APPLICATION)
    check_attributes(FastAPI().router, ROUTER)
    check_attributes(APIRoute("/{name}", endpoint), ROUTE)


async def test_router_of_fastapi_calls_its_middleware_stack() -> None:
    """`agentctl.server.routing.Entrance` stands there, in front of the list of routes."""
    received = list[str]()

    async def entrance(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(scope["path"])

    app = FastAPI()
    app.router.middleware_stack = entrance
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as client:
        with contextlib.suppress(AssertionError):  # There is no response.
            await client.get("http://test/any")
    assert received == ["/any"]


def test_each_library_is_imported_in_one_place() -> None:
    places = {
        "uvicorn": ("agentctl.server.transport.",),
        # The client of model endpoints has its own transport (docs/decisions/0048).
        "httptools": ("agentctl.server.transport.", "agentctl.runtime.models.stream_transport"),
        "fastapi": ("agentctl.server.",),
    }
    for module in modules():
        for node in ast.walk(module.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                place = places.get(name.partition(".")[0])
                if module.name == "agentctl" and name.startswith("fastapi"):
                    continue  # declarations for type checkers
                assert place is None or module.name.startswith(place), (module.name, name)
