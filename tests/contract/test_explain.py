"""Explanations of both backends on the same data: equal bytes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agentctl.interface.operations import Operations
from agentctl.interface.requests import ExplainRequest, RunRequest
from tests.auth.forge import Pair, rs, token
from tests.contract.backends import Backends, call_operation
from tests.kit.deployment import ADMIN, Deployment

REQUESTS = [
    ("GET", "/agents"),
    ("GET", "/agents/echo"),
    ("GET", "/agents/none"),
    ("POST", "/agents/echo/runs"),
    ("GET", "/sessions/explained?type=agent"),
    ("DELETE", "/sessions/explained?db_id=none"),
    ("GET", "/nothing"),
    ("PUT", "/agents"),
    ("head", "/health"),
    ("GET", "/agents/%00"),
    ("no method", "/"),
    ("GET", "no path"),
]


def signed(deployment: Deployment, **claims: Any) -> str:
    """Sign a token without times, whose explanation does not change."""
    pem = (deployment.folder / "keys" / "signing.pem").read_bytes()
    return token({"alg": "RS256"}, claims, rs(Pair(load_pem_private_key(pem, None))))


@pytest.fixture(scope="module")
def explained(shared: Backends) -> Backends:
    """Create a session of `owner`."""

    async def fill() -> None:
        mine = shared.there.token("owner", "agents:run")
        async with shared.remote(mine) as operations:
            await operations.runs.create("agent", "echo", RunRequest("hello", "explained"))

    asyncio.run(fill())
    return shared


async def test_explanations_are_equal(explained: Backends) -> None:
    deployment = explained.there
    scopes = ["agents:read", "sessions:explained:read"]
    tokens = {
        "owner": signed(deployment, sub="owner", scopes=scopes),
        "stranger": signed(deployment, sub="stranger", scopes=scopes),
        "text": signed(deployment, sub="owner", scopes="agents:read"),
        "admin": signed(deployment, scopes=[ADMIN]),
        "bad": "a.b",
        "none": "",
    }
    admin = deployment.token("boss", ADMIN)
    async with explained.local(admin) as local, explained.remote(admin) as remote:
        for (method, path), name in itertools.product(REQUESTS, tokens):
            request = ExplainRequest(method, path, tokens[name])

            async def ask(operations: Operations, request: ExplainRequest = request) -> Any:
                return await operations.system.explain_auth(request)

            here = await call_operation(local, ask)
            there = await call_operation(remote, ask)
            assert here == there, (method, path, name)


async def test_only_administrators_explain(explained: Backends) -> None:
    mine = explained.there.token("owner", "agents:read", "config:read")
    request = ExplainRequest("GET", "/agents", "")
    async with explained.local(mine) as local, explained.remote(mine) as remote:
        here = await call_operation(
            local, lambda operations: operations.system.explain_auth(request)
        )
        there = await call_operation(
            remote, lambda operations: operations.system.explain_auth(request)
        )
    assert here == there == ("failed", ("FORBIDDEN", "Insufficient scopes for this operation", 4))


async def test_explain_without_a_token_uses_that_of_the_caller(explained: Backends) -> None:
    admin = explained.there.token("boss", ADMIN)
    async with explained.remote(admin) as remote:
        explanation = (await remote.system.explain_auth(ExplainRequest("GET", "/agents"))).value
    assert (explanation["allowed"], explanation["principal"]) == (True, "boss")
    async with explained.local(admin) as local:
        explanation = (await local.system.explain_auth(ExplainRequest("GET", "/agents"))).value
    assert (explanation["allowed"], explanation["decided_by"]) == (False, "credential")
