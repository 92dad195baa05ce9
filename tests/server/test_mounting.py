"""The application alone, under a root path, and mounted in another application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from agentctl.server import create_app, running
from agentctl.server.answers import Call
from agentctl.server.routing import Operation
from tests.kit.deployment import ADMIN, Deployment


def client(app: object, base: str = "http://test") -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)  # type: ignore[arg-type]
    return httpx2.AsyncClient(transport=transport, base_url=base)


def bearer(deployment: Deployment, *scopes: str) -> dict[str, str]:
    return deployment.bearer("me", *scopes)


async def test_every_request_is_503_without_running(settled: Deployment) -> None:
    async with client(create_app(settled.settings)) as http:
        for path in ("/health", "/teams", "/nothing", "/docs"):
            answer = await http.get(path, headers=bearer(settled, ADMIN))
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert answer.json()["error_code"] == "UNAVAILABLE"
            assert "async with agentctl.server.running(app):" in answer.json()["detail"]
            assert "x-request-id" in answer.headers


async def test_running_ends_with_its_block(settled: Deployment) -> None:
    app = create_app(settled.settings)
    async with client(app) as http:
        async with running(app):
            assert (await http.get("/health")).status_code == 200
        assert (await http.get("/health")).status_code == 503
        async with running(app):
            assert (await http.get("/health")).status_code == 200


async def check_refusals_in_order(http: httpx2.AsyncClient, deployment: Deployment) -> None:
    """Check that 401, 403, 404 and 422 come in this order under any path."""
    assert (await http.get("health")).status_code == 200
    assert (await http.post("agents/echo/runs", content=b"{")).status_code == 401
    assert (await http.get("nothing")).status_code == 401
    weak = bearer(deployment, "teams:read")
    strong = bearer(deployment, ADMIN)
    refused = await http.post("agents/echo/runs", content=b"{", headers=weak)
    assert refused.status_code == 403
    assert refused.json()["required_scopes"] == ["agents:echo:run", "agents:*:run", "agents:run"]
    assert (await http.get("nothing", headers=weak)).status_code == 404
    assert (await http.get("sessions/nothing", headers=strong)).status_code == 404
    assert (await http.get("sessions?limit=x", headers=strong)).status_code == 422
    assert (await http.get("teams", headers=weak)).status_code == 200


async def test_application_alone(settled: Deployment) -> None:
    app = create_app(settled.settings)
    async with running(app), client(app, "http://test/") as http:
        await check_refusals_in_order(http, settled)


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_mounted_application(settled: Deployment, framework: type[Starlette]) -> None:
    app = create_app(settled.settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with running(app):
            yield

    outside = framework(routes=[Mount("/api/v1", app=app)], lifespan=lifespan)
    async with lifespan(outside), client(outside, "http://test/api/v1/") as http:
        await check_refusals_in_order(http, settled)
        document = (await http.get("openapi.json")).json()
        assert document["servers"] == [{"url": "/api/v1"}]


async def test_application_under_a_root_path(settled: Deployment) -> None:
    app = create_app(settled.settings)
    app.root_path = "/base"
    async with running(app):
        for base in ("http://test/base/", "http://test/"):  # kept or stripped by the proxy
            async with client(app, base) as http:
                document = (await http.get("openapi.json")).json()
                assert document["servers"] == [{"url": "/base"}]
                await check_refusals_in_order(http, settled)


async def test_operation_without_a_policy_prevents_the_start(settled: Deployment) -> None:
    app = create_app(settled.settings)

    async def get_extra(call: Call) -> Response:
        """Respond to everybody."""
        raise NotImplementedError

    app.router.routes.append(Operation(get_extra, tag="System", route=("GET", "/extra")))
    with pytest.raises(RuntimeError, match="no policy"):
        async with running(app):
            pass


async def test_route_that_is_added_later_needs_a_token(settled: Deployment) -> None:
    app = create_app(settled.settings)
    async with running(app), client(app) as http:
        assert (await http.get("/extra")).status_code == 401

        async def extra(request: Request) -> Response:
            return Response("open to everybody")

        app.router.routes.append(Route("/extra", extra))
        assert (await http.get("/extra")).status_code == 401
        answer = await http.get("/extra", headers=bearer(settled, "teams:read"))
        assert answer.text == "open to everybody"
