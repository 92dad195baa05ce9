"""The private interfaces of libraries that the server uses.

An upgrade that changes one of them fails here first, with its name. FastAPI's are used in
`agentctl.server.app` and `routing`. `agentctl.server.transport` names those of uvicorn.
"""

from __future__ import annotations

import contextlib

import httpx2
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

APPLICATION = {"build_middleware_stack", "dependency_overrides", "router", "routes", "state"}
ROUTER = {"app", "default", "lifespan_context", "middleware_stack", "routes"}
ROUTE = {"get_route_handler", "handle", "include_in_schema", "matches", "methods", "path"}

LOST = "has lost attributes that agentctl uses (agentctl.server.app or routing): "


def check_attributes(thing: object, names: set[str]) -> None:
    missing = sorted(name for name in names if not hasattr(thing, name))
    assert not missing, f"{type(thing).__name__} {LOST}{', '.join(missing)}"


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
