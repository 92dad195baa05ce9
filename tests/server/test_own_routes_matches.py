"""The access of random routes compared with what FastAPI matches.

The route that FastAPI will choose decides the access of a request, before FastAPI is called. Each
case has routes that overlap, in routers and mounts, some of them public.
"""

from __future__ import annotations

import ast
import inspect
import os
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import agentctl
from agentctl.server import access, create_app, running
from agentctl.server import app as application
from tests.kit.deployment import ADMIN, Deployment

CASES = 300 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 10
REQUESTS = 20

SEGMENTS = ("a", "b", "{x}", "{y:path}", "{n:int}")


def build_endpoint(name: str) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return PlainTextResponse(name)

    return endpoint


def add_routes(target: Any, chance: random.Random, public: set[str], depth: int = 0) -> None:
    """Add random routes to an application or router; `public` receives the names of public ones."""
    for number in range(chance.randrange(2, 8)):
        parts = chance.choices(SEGMENTS[:3], k=chance.randrange(1, 3))
        parts += chance.choices(SEGMENTS[3:], k=int(chance.random() < 0.3))
        # Two parameters of a path have different names.
        path = "".join(f"/{part.replace('{x', f'{{x{at}')}" for at, part in enumerate(parts))
        name = f"{depth}.{number}.{chance.random():.6f}"
        kind = chance.randrange(5)
        is_open = chance.random() < 0.4
        if kind == 0 and depth < 2:
            router = APIRouter()
            add_routes(router, chance, public, depth + 1)
            target.include_router(router, prefix=path.partition("{")[0].rstrip("/") or "/a")
            continue
        endpoint: Any = PlainTextResponse(name) if kind == 1 else build_endpoint(name)
        if is_open:
            public.add(name)
            agentctl.public(endpoint)
        method = chance.choice(("GET", "POST"))
        if kind == 1:
            target.mount(path.partition("{")[0].rstrip("/") or "/b", endpoint)
        elif kind == 2 and depth == 0:
            target.router.add_route(path, endpoint, methods=[method])
        else:
            target.add_api_route(path, endpoint, methods=[method])


def connect(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test")


async def test_access_is_that_of_the_route_that_fastapi_chooses(settled: Deployment) -> None:
    served = create_app(settled.settings)
    admin = settled.bearer("me", ADMIN)
    seen = dict.fromkeys(("public", "private", "unknown"), 0)
    async with running(served):
        for case in range(CASES):
            public = set[str]()
            plain = FastAPI(redirect_slashes=False)
            own = agentctl.create_app(settled.settings)
            own.state.agentctl = served.state.agentctl
            for app in (plain, own):
                add_routes(app, random.Random(case), public)
            chance = random.Random(-case - 1)
            async with connect(plain) as there, connect(own) as here:
                for _ in range(REQUESTS):
                    words = chance.choices(("a", "b", "7"), k=chance.randrange(1, 4))
                    method = chance.choice(("GET", "POST"))
                    path = "/" + "/".join(words)
                    expected = await there.request(method, path)
                    known = await here.request(method, path, headers=admin)
                    unknown = await here.request(method, path)
                    assert known.status_code == expected.status_code, (case, method, path)
                    kind = "public" if expected.text in public else "private"
                    if expected.status_code != 200:
                        kind = "unknown"
                    else:
                        assert known.text == expected.text, (case, method, path)
                    seen[kind] += 1
                    status = 200 if kind == "public" else 401
                    assert unknown.status_code == status, (case, method, path)
    assert min(seen.values()) > 10, seen


def test_declarations_of_the_package_are_those_of_the_functions() -> None:
    """The package declares the functions for type checkers without an import of the server."""

    def read(*modules: ModuleType) -> dict[str, tuple[str, str]]:
        return {
            node.name: (ast.unparse(node.args), ast.unparse(node.returns or ast.Constant(None)))
            for module in modules
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }

    declared = read(agentctl)
    defined = read(access, application)
    # For the user, the application is a FastAPI application.
    arguments, _ = defined["create_app"]
    defined["create_app"] = (arguments, "FastAPI")
    names = {"create_app", "public", "current_user", "operations", "require"}
    assert {name: declared[name] for name in names} == {name: defined[name] for name in names}


async def test_host_and_frontend_need_a_token(
    settled: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("frontend")
    (folder / "index.html").write_text("a page")
    app = agentctl.create_app(settled.settings)
    app.router.host("other", PlainTextResponse("another host"))
    if hasattr(app.router, "frontend"):
        app.router.frontend("/", directory=folder)
    async with running(app), connect(app) as client:
        for host in ("other", "test"):
            fields = {"Host": host}
            assert (await client.get("/x", headers=fields)).status_code == 401
            known = await client.get("/", headers={**fields, **settled.bearer("me", ADMIN)})
            assert known.status_code == 200


@pytest.mark.parametrize("key", [500, Exception])
async def test_handler_of_all_exceptions_answers_for_own_routes(
    settled: Deployment, key: type[Exception] | int, caplog: pytest.LogCaptureFixture
) -> None:
    app = agentctl.create_app(settled.settings)

    @app.exception_handler(key)
    def apologize(request: Request, error: Exception) -> Response:
        return PlainTextResponse(f"sorry for {type(error).__name__}", 500)

    @app.get("/fails")
    @agentctl.public
    def fail() -> None:
        raise KeyError

    async with running(app), connect(app) as client:
        answer = await client.get("/fails")
        assert (answer.status_code, answer.text) == (500, "sorry for KeyError")
        assert f"request {answer.headers['x-request-id']} failed" in caplog.text
        assert (await client.get("/agents")).json()["error_code"] == "UNAUTHENTICATED"
