"""Rows about the server, the caller and the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl import __version__
from agentctl.interface.requests import ExplainRequest
from tests.contract.rows import FORBIDDEN, INVALID, Row

__all__ = ["system_rows"]


def system_rows() -> Iterator[Row]:
    version = f'"version":"{__version__}"'
    yield Row("get_api", "GET /", lambda o, at: o.system.get_api(), has=(version,))
    yield Row("get_health", "GET /health", lambda o, at: o.system.get_health(), has=('"ok"',))
    yield Row("get_info", "GET /info", lambda o, at: o.system.get_info(), has=('"os_id":"world"',))
    # A busy machine may not be ready.
    yield Row("get_readiness", "GET /ready", lambda o, at: o.system.get_readiness(), is_same=False)

    yield Row(
        "get_config",
        "GET /config",
        lambda o, at: o.system.get_config(),
        has=('"databases":["main","second"]', '"crew"'),
        lacks=("sqlite", "postgres", "127.0.0.1"),
    )

    yield Row(
        "get_config",
        "GET /config",
        lambda o, at: o.system.get_config(),
        "powerless",
        403,
        (*FORBIDDEN, "config:read"),
    )

    yield Row(
        "get_models",
        "GET /models",
        lambda o, at: o.system.get_models(),
        has=('{"id":"echo","provider":"openai"}',),
    )

    yield Row(
        "get_me",
        "GET /auth/me",
        lambda o, at: o.system.get_me(),
        has=('"principal":"me"', '"admin":false', '"sessions:delete"'),
    )

    yield Row(
        "get_me", "GET /auth/me", lambda o, at: o.system.get_me(), "powerless", has=('"scopes":[]',)
    )

    yield Row(
        "get_deployment",
        "GET /deployment",
        lambda o, at: o.system.get_deployment(),
        "admin",
        has=('"workers":[',),
        is_same=False,
    )

    yield from _explanations()


def _explanations() -> Iterator[Row]:
    path = "POST /auth/explain"
    yield Row(
        "explain_auth",
        path,
        lambda o, at: o.system.explain_auth(ExplainRequest("GET", "/sessions/s?type=agent", "")),
        "admin",
        has=('"status":401', '"decided_by":"credential"', '"operation":"get_session_by_id"'),
        body={"method": "GET", "path": "/sessions/s?type=agent", "token": ""},
    )

    yield Row(
        "explain_auth",
        path,
        lambda o, at: o.system.explain_auth(ExplainRequest("PUT", "/nothing", "a.b")),
        "admin",
        has=('"status":401', '"decided_by":"form"', '"operation":null'),
        lacks=("a.b",),
        body={"method": "PUT", "path": "/nothing", "token": "a.b"},
    )

    yield Row(
        "explain_auth",
        path,
        lambda o, at: o.system.explain_auth(ExplainRequest("G T", "/", "")),
        "admin",
        422,
        INVALID,
        body={"method": "G T", "path": "/", "token": ""},
    )

    yield Row(
        "explain_auth",
        path,
        lambda o, at: o.system.explain_auth(ExplainRequest("GET", "/", "")),
        "me",
        403,
        FORBIDDEN,
        body={"method": "GET", "path": "/", "token": ""},
    )
