"""Unexpected exceptions, unavailable databases and cross-origin requests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agentctl.config.settings import Settings
from agentctl.errors import InvalidConfiguration, Unavailable
from agentctl.server import create_app, running
from agentctl.server.answers import Call
from agentctl.server.routing import Operation
from tests.kit.deployment import ADMIN, Deployment
from tests.server.test_mounting import bearer, client

SECRET = "postgresql://user:password@host"


async def ask(deployment: Deployment, failure: Exception) -> httpx2.Response:
    """Return the response of an endpoint that raises `failure`."""

    async def get_health(call: Call) -> Response:
        """Fail."""
        raise failure

    app = create_app(deployment.settings)
    app.serve_operations([Operation(get_health, tag="System")])
    async with running(app), client(app) as http:
        return await http.get("/health")


@pytest.mark.parametrize("failure", [RuntimeError(SECRET), InvalidConfiguration(SECRET)])
async def test_unexpected_exception_is_logged_and_not_returned(
    settled: Deployment, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(settled, failure)
    assert answer.status_code == 500
    assert answer.json() == {
        "detail": "Internal server error",
        "error_code": "INTERNAL_SERVER_ERROR",
    }
    assert "www-authenticate" not in answer.headers
    (logged,) = (record for record in caplog.records if record.name == "agentctl.server")
    assert answer.headers["x-request-id"] in logged.getMessage()
    assert logged.exc_info is not None


async def test_unavailable_has_retry_after(
    settled: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await ask(settled, Unavailable("The database is not available"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error_code"] == "UNAVAILABLE"
    assert any(answer.headers["x-request-id"] in record.getMessage() for record in caplog.records)


async def test_error_in_a_stream_ends_its_connection(
    settled: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    async def send_parts() -> AsyncIterator[bytes]:
        yield b"one part"
        raise Unavailable("The database was lost")

    async def get_health(call: Call) -> Response:
        """Fail after the first part."""
        return StreamingResponse(send_parts())

    app = create_app(settled.settings)
    app.serve_operations([Operation(get_health, tag="System")])
    async with running(app), client(app) as http:
        with pytest.raises(Unavailable):
            await http.get("/health")
    [logged] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert logged.getMessage() == "requests fail with 503: The database was lost"


async def test_handler_of_a_user_responds_to_a_failed_operation(
    settled: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    async def get_health(call: Call) -> Response:
        """Fail."""
        raise RuntimeError(SECRET)

    app = create_app(settled.settings)
    app.serve_operations([Operation(get_health, tag="System")])

    @app.exception_handler(Exception)
    def apologize(request: Request, error: Exception) -> Response:
        return Response("sorry", 500)

    async with running(app), client(app) as http:
        answer = await http.get("/health")
    assert (answer.status_code, answer.text) == (500, "sorry")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert f"request {answer.headers['x-request-id']} failed" in caplog.text


async def test_closed_database_is_not_ready(settled: Deployment) -> None:
    app = create_app(settled.settings)
    async with running(app), client(app) as http:
        assert (await http.get("/ready")).json()["status"] == "ready"
        for database in app.state.agentctl.service.operations_for(
            None
        ).access.hosting.databases.values():
            await database.close()
        answer = await http.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["status"] == "unavailable"
        assert answer.json()["checks"]["database"] == "failed"


ORIGIN = "https://console.example"


def with_origins(deployment: Deployment) -> Settings:
    settings = deployment.settings
    return replace(settings, server=replace(settings.server, cors_origins=(ORIGIN,)))


def preflight(origin: str, method: str = "DELETE", fields: str = "Authorization") -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": fields,
    }


async def test_configured_origin_is_allowed(settled: Deployment) -> None:
    app = create_app(with_origins(settled))
    async with running(app), client(app) as http:
        asked = await http.options("/sessions/s1", headers=preflight(ORIGIN))
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert "Authorization" in asked.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in asked.headers
        wanted = "agentctl-interface, authorization, content-type, idempotency-key, last-event-id"
        to_run = await http.options("/agents/a/runs", headers=preflight(ORIGIN, "POST", wanted))
        assert to_run.status_code == 204
        for headers in ({}, bearer(settled, ADMIN)):
            answer = await http.get("/teams", headers={"Origin": ORIGIN, **headers})
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert "Origin" in answer.headers["vary"]
            exposed = answer.headers["access-control-expose-headers"]
            assert {"Retry-After", "X-Request-ID"} <= set(exposed.split(", "))


FIELDS_OF_CLIENTS = (
    "user-agent",  # Safari and Firefox, if a page sets it.
    "authorization,content-type,x-stainless-retry-count,x-stainless-a-new-one",
    "anthropic-version, anthropic-dangerous-direct-browser-access, x-api-key",
    "openai-organization, openai-project, openai-beta",
    "traceparent, tracestate, baggage, sentry-trace, b3, x-datadog-trace-id",
    "accept, accept-language, cache-control, pragma, priority, x-requested-with",
    "Mcp-Session-Id, Last-Event-ID, agentctl-interface",
    " a ,, b\t",
    "x-!#$%&'*+.^_`|~",
)


async def test_allowed_origin_may_send_any_field(settled: Deployment) -> None:
    app = create_app(with_origins(settled))
    path = "/v1/chat/completions"
    async with running(app), client(app) as http:
        for names in FIELDS_OF_CLIENTS:
            asked = await http.options(path, headers=preflight(ORIGIN, "POST", names))
            assert asked.status_code == 204, names
            allowed = asked.headers["access-control-allow-headers"].split(",")
            wanted = {name.strip() for name in names.split(",")}
            assert {name.strip() for name in allowed} == wanted

            elsewhere = preflight("https://evil.example", "POST", names)
            other = await http.options(path, headers=elsewhere)
            assert other.status_code == 400
            assert "access-control-allow-origin" not in other.headers


async def test_field_that_is_no_name_is_not_sent_back(settled: Deployment) -> None:
    app = create_app(with_origins(settled))
    async with running(app), client(app) as http:
        for names in ("a b", "x:y", "a, (b)", "é", '"a"', "a\x7f"):
            fields: Any = preflight(ORIGIN, "POST")
            fields["Access-Control-Request-Headers"] = names.encode()
            asked = await http.options("/teams", headers=fields)
            assert (asked.status_code, asked.json()["error_code"]) == (400, "BAD_REQUEST"), names
            assert "access-control-allow-headers" not in asked.headers


OTHER_ORIGINS = ("null", "https://evil-console.example", f"{ORIGIN}.evil", "http://console.example")


async def test_other_origins_are_not_allowed(settled: Deployment) -> None:
    app = create_app(with_origins(settled))
    async with running(app), client(app) as http:
        for origin in OTHER_ORIGINS:
            asked = await http.options("/teams", headers=preflight(origin))
            assert asked.status_code == 400, origin
            assert asked.json()["error_code"] == "BAD_REQUEST"
            assert "access-control-allow-origin" not in asked.headers
            answer = await http.get("/health", headers={"Origin": origin})
            assert "access-control-allow-origin" not in answer.headers


async def test_preflight_without_origins_is_405(settled: Deployment) -> None:
    app = create_app(settled.settings)
    async with running(app), client(app) as http:
        headers = preflight(ORIGIN) | bearer(settled, ADMIN)
        answer = await http.options("/teams", headers=headers)
        assert answer.status_code == 405
        assert "access-control-allow-origin" not in answer.headers
