"""Explanations, through both doors on the same state: the same bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agentctl.operations import ExplainRequest, Operations, RunRequest
from tests.auth.forge import Pair, rs, token
from tests.contract.doors import Doors, asked
from tests.deployment import ADMIN, Deployment

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
    """A token without times, about which there is always the same to say."""
    pem = (deployment.folder / "keys" / "signing.pem").read_bytes()
    return token({"alg": "RS256"}, claims, rs(Pair(load_pem_private_key(pem, None))))


@pytest.fixture(scope="module")
def explained(shared: Doors) -> Doors:
    """A session of `owner` is there."""

    async def fill() -> None:
        mine = shared.there.token("owner", "agents:run")
        async with shared.remote(mine) as port:
            await port.create_run("agent", "echo", RunRequest("hello", "explained"))

    asyncio.run(fill())
    return shared


@pytest.mark.parametrize(("method", "path"), REQUESTS)
async def test_both_doors_explain_alike(explained: Doors, method: str, path: str) -> None:
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
        for name, given in tokens.items():
            request = ExplainRequest(method, path, given)

            async def ask(port: Operations, request: ExplainRequest = request) -> Any:
                return await port.explain_auth(request)

            assert await asked(local, ask) == await asked(remote, ask), name


async def test_only_administrators_are_told(explained: Doors) -> None:
    mine = explained.there.token("owner", "agents:read", "config:read")
    request = ExplainRequest("GET", "/agents", "")
    async with explained.local(mine) as local, explained.remote(mine) as remote:
        here = await asked(local, lambda port: port.explain_auth(request))
        there = await asked(remote, lambda port: port.explain_auth(request))
    assert here == there == ("failed", ("FORBIDDEN", "Insufficient scopes for this operation", 4))


async def test_without_a_token_it_is_about_the_callers_own(explained: Doors) -> None:
    admin = explained.there.token("boss", ADMIN)
    async with explained.remote(admin) as remote:
        told = (await remote.explain_auth(ExplainRequest("GET", "/agents"))).value
    assert (told["allowed"], told["principal"]) == (True, "boss")
    async with explained.local(admin) as local:
        told = (await local.explain_auth(ExplainRequest("GET", "/agents"))).value
    assert (told["allowed"], told["decided_by"]) == (False, "credential")
