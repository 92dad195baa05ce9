"""Explanations match the responses of the server, for every reason to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl.auth.explain.checks import JWT_CHECKS
from agentctl.auth.principal import local_principal
from agentctl.config import load_settings
from agentctl.errors import InvalidKey
from agentctl.interface.requests import ExplainRequest
from agentctl.server import create_app
from agentctl.service.service import Service
from tests.auth import hostile
from tests.auth.explain_cases import (
    ALL,
    CASES,
    CONFIGURATIONS,
    Case,
    Place,
    signed,
    signed_for,
    write_configuration,
)
from tests.kit.deployment import Deployment
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

ADMIN = {"iss": "https://id.example/", "aud": "here", "sub": "boss"}
ALLOWED = 200


@dataclass(frozen=True)
class Server:
    """A running server with sessions, runs and accounts."""

    host: ThreadedServer
    file: Path
    place: Place

    explanations: dict[Case, dict[str, Any]] = field(default_factory=dict)
    """The explanations over HTTP so far: a case is asked once for all tests."""

    def answer(self, case: Case) -> httpx2.Response:
        """Send the request of a case."""
        method, path = case.asked(self.place)
        token = case.token(self.place)
        return self.host.client.request(
            method, path, headers={} if token is None else bearer(token)
        )

    def explain(self, case: Case) -> dict[str, Any]:
        """Return the explanation of a case, over HTTP."""
        if case in self.explanations:
            return self.explanations[case]

        method, path = case.asked(self.place)
        body = {"method": method, "path": path, "token": case.token(self.place) or ""}
        answer = self.host.client.post("/auth/explain", json=body, headers=admin(case.where))
        assert answer.status_code == 200, answer.text
        self.explanations[case] = answer.json()
        return self.explanations[case]


def bearer(token: str) -> dict[str, Any]:
    return {"Authorization": b"Bearer " + token.encode("latin-1")}


def admin(where: str) -> dict[str, Any]:
    """Return the headers of an administrator of a configuration."""
    scope = "own:admin" if where == "strict" else "agent_os:admin"
    return bearer(signed_for(where, {**ADMIN, "scopes": [scope]}))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        found: dict[str, Server] = {}
        for name in CONFIGURATIONS:
            folder = tmp_path_factory.mktemp(name)
            file = write_configuration(folder, name)
            host = stack.enter_context(
                serve_in_thread(Deployment(folder), create_app(load_settings(file, {})))
            )
            found[name] = Server(host, file, fill(host) if name == "jwks" else Place())
        yield found


def fill(host: ThreadedServer) -> Place:
    """Create sessions of three owners with runs, and service accounts."""
    ids = {}
    accounts = {}
    owners = {"mine": ("me", "my_run"), "theirs": ("other", "their_run"), "ownerless": (None, "")}
    for session_id, (owner, run) in owners.items():
        body = {"message": "hello", "session_id": session_id, "stream": False}
        headers = bearer(signed({"sub": owner}))
        response = host.client.post("/agents/echo/runs", json=body, headers=headers)
        assert response.status_code == 200, response.text
        ids[run or "their_own"] = response.json()["run_id"]
    for name, scope in {"reader": "agents:read", "sessions": "sessions:read"}.items():
        accounts[name] = new_account(host, name, scope)["token"]
    gone = new_account(host, "gone", "agents:read")
    accounts["revoked"] = gone["token"]
    path = f"/service-accounts/{gone['id']}"
    assert host.client.delete(path, headers=admin("jwks")).status_code == 204
    return Place(ids, accounts)


def new_account(host: ThreadedServer, name: str, scope: str) -> dict[str, Any]:
    body = {"name": name, "scopes": [{"scope": scope}]}
    response = host.client.post("/service-accounts", json=body, headers=admin("jwks"))
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return {"id": answer.get("id"), **answer}


def test_cases_cover_every_check() -> None:
    refused = [case for case in CASES if case.status != ALLOWED]
    assert len(refused) > 100
    assert {case.by for case in refused} >= {check.name for check in JWT_CHECKS} - {"claims.scopes"}


@every_row("case", CASES)
def test_explanation_matches_the_response(servers: dict[str, Server], case: Case) -> None:
    server = servers[case.where]
    explanation = server.explain(case)
    answer = server.answer(case)
    assert explanation["status"] == case.status, explanation
    check_answer(answer, explanation)
    check_steps(explanation)
    decided = next(
        step for step in explanation["steps"] if step["name"] == explanation["decided_by"]
    )
    if case.status != ALLOWED:
        assert explanation["decided_by"] == case.by
        said = " ".join(filter(None, (decided["found"], decided["cause"], decided["remedy"])))
    else:
        said = " ".join(step["found"] for step in explanation["steps"])
    for text in case.expected_texts:
        assert text in said


def check_answer(answer: httpx2.Response, explanation: dict[str, Any]) -> None:
    """Assert that a response matches; after the checks, parameters and bodies may fail."""
    if not explanation["allowed"]:
        assert answer.status_code == explanation["status"], answer.text
        return
    assert answer.status_code not in (401, 403, 404, 405), answer.text


def check_steps(explanation: dict[str, Any]) -> None:
    """Assert that at most one check fails, is explained, and is the last that ran."""
    outcomes = [step["outcome"] for step in explanation["steps"]]
    failed = [step for step in explanation["steps"] if step["outcome"] == "failed"]
    assert len(failed) <= 1
    for step in explanation["steps"]:
        explained = step["cause"] and step["remedy"]
        assert bool(explained) == (step["outcome"] == "failed"), step
    if explanation["allowed"]:
        assert explanation["status"] == ALLOWED
        return
    assert failed[0]["name"] == explanation["decided_by"]
    behind = explanation["steps"][outcomes.index("failed") + 1 :]
    passed = {step["name"] for step in behind if step["outcome"] == "passed"}
    assert passed <= ({"route"} if explanation["operation"] else set())


@every_row("case", CASES)
def test_explanation_never_contains_the_credential(servers: dict[str, Server], case: Case) -> None:
    server = servers[case.where]
    token = case.token(server.place) or ""
    explanation = json.dumps(server.explain(case))
    for part in token.split("."):
        if len(part) >= 16:
            assert part not in explanation
            assert part[:16] not in explanation


@pytest.mark.parametrize("where", CONFIGURATIONS)
def test_local_explanation_matches_the_server(servers: dict[str, Server], where: str) -> None:
    """The local backend explains from the configuration and the database."""
    server = servers[where]

    async def explained() -> list[dict[str, Any]]:
        async with Service.open(load_settings(server.file, {})) as service:
            port = service.operations_for(local_principal("me"))
            return [
                dict((await port.system.explain_auth(request(server, case))).value)
                for case in CASES
                if case.where == where
            ]

    here = asyncio.run(explained())
    there = [server.explain(case) for case in CASES if case.where == where]
    for one, other in zip(here, there, strict=True):
        assert verdict(one) == verdict(other)


def request(server: Server, case: Case) -> ExplainRequest:
    return ExplainRequest(*case.asked(server.place), case.token(server.place) or "")


def verdict(explanation: dict[str, Any]) -> Any:
    """Return an explanation without the found values, which contain times."""
    steps = [(step["name"], step["outcome"], step["remedy"]) for step in explanation["steps"]]
    return {**explanation, "steps": steps}


def test_missing_database_skips_the_data_check(tmp_path: Path) -> None:
    settings = load_settings(write_configuration(tmp_path, "jwks"), {})

    async def explained(path: str) -> dict[str, Any]:
        async with Service.open(settings) as service:
            port = service.operations_for(local_principal("me"))
            asked = ExplainRequest("GET", path, signed(scopes=ALL))
            return dict((await port.system.explain_auth(asked)).value)

    explanation = asyncio.run(explained("/sessions/mine"))
    assert explanation["allowed"]
    assert explanation["steps"][-1]["outcome"] == "skipped"
    assert "cannot be read" in explanation["steps"][-1]["found"]
    assert not asyncio.run(explained("/agents/unknown"))["allowed"]
    assert not list(tmp_path.glob("*.db*"))


def test_hostile_tokens_are_explained(tmp_path: Path) -> None:
    """Each token gets a verdict with one failed check, and no exception is raised."""
    settings = load_settings(write_configuration(tmp_path, "jwks"), {})

    async def explained() -> dict[str, dict[str, Any]]:
        async with Service.open(settings) as service:
            port = service.operations_for(local_principal("me"))
            found = {}
            for name, case in hostile.CASES.items():
                given = case.header.partition(" ")[2]
                asked = ExplainRequest("GET", "/agents/echo", given or "x")
                found[name] = dict((await port.system.explain_auth(asked)).value)
            return found

    for name, explanation in asyncio.run(explained()).items():
        assert (explanation["status"], explanation["allowed"]) == (401, False), name
        check_steps(explanation)


def test_rejected_keys_are_an_error(servers: dict[str, Server], tmp_path: Path) -> None:
    file = write_configuration(tmp_path, "jwks")
    (tmp_path / "jwks.json").write_text("{}")

    async def explained() -> None:
        async with Service.open(load_settings(file, {})) as service:
            await service.operations_for(local_principal("me")).system.explain_auth(
                ExplainRequest("GET", "/", "")
            )

    with pytest.raises(InvalidKey):
        asyncio.run(explained())
