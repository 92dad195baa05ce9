"""Responses of a server to invalid credentials, and to keys that change on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from agentctl.config.settings import Authorization, Database, Settings
from agentctl.server import create_app
from tests.auth.hostile import CASES, CLAIMS, OURS, RS, signed
from tests.auth.verifiers import NEW, OLD, bearer, jwks, replace_file
from tests.kit.conditions import wait_for
from tests.kit.deployment import Deployment
from tests.kit.forged_tokens import rs, token
from tests.kit.threaded_server import ThreadedServer, serve_in_thread


def serve(folder: Path, given: Authorization) -> Settings:
    database = Database(id="main", url=f"sqlite:///{folder}/main.db")
    return Settings(authorization=given, databases=(database,))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    folder = tmp_path_factory.mktemp("hostile")
    settings = serve(folder, Authorization(verification_keys=(OURS.pem,)))
    with serve_in_thread(Deployment(folder), create_app(settings)) as running:
        yield running


def is_sendable(header: str) -> bool:
    """Return True if HTTP transports the header unchanged; two credentials are a 400 (T04)."""
    one = ", " not in header
    return one and header.isascii() and header.isprintable() and header == header.strip()


SENT = {
    name: case.header
    for name, case in CASES.items()
    if case.server == "RS256" and is_sendable(case.header) and len(case.header) < 12_000
}


def ask(host: ThreadedServer, header: str, path: str = "/teams") -> httpx2.Response:
    return host.client.get(path, headers={"Authorization": header})


def test_all_invalid_credentials_get_the_same_response(host: ThreadedServer) -> None:
    assert len(SENT) > 300
    answers = {name: ask(host, header) for name, header in SENT.items()}
    others = {name: answer.status_code for name, answer in answers.items()}
    assert {name: status for name, status in others.items() if status != 401} == {}
    assert {answer.content for answer in answers.values()} == {
        b'{"detail":"Invalid or expired credential","error_code":"UNAUTHENTICATED"}'
    }
    kept = {
        tuple(
            (name, value)
            for name, value in answer.headers.multi_items()
            if name not in ("date", "x-request-id")
        )
        for answer in answers.values()
    }
    assert len(kept) == 1, "no header field tells them apart"
    told = 'Bearer realm="agentctl", error="invalid_token"'
    assert next(iter(answers.values())).headers["www-authenticate"] == told
    good = ask(host, "Bearer " + signed({**RS, "typ": "JWT"}))
    assert good.status_code == 403, "the connection still serves; the token holds, without scope"


def test_header_bytes_that_are_not_text_are_rejected(host: ThreadedServer) -> None:
    """T07: latin-1 and UTF-8 in the field."""
    good = signed(RS)
    for value in (f"Bearer {good}\u00e9".encode("latin-1"), f"Bearer {good}\u0661".encode()):
        answer = host.client.get("/teams", headers=[(b"Authorization", value)])
        assert answer.status_code == 401


def test_token_outside_of_the_header_is_ignored(host: ThreadedServer) -> None:
    """T01, T05: without the field there was no credential, so no error code (RFC 6750 3.1)."""
    good = signed(RS)
    for answer in (
        host.client.get("/teams"),
        host.client.get("/teams", params={"access_token": good, "token": good}),
        host.client.get("/teams", headers={"Cookie": f"token={good}", "X-Access-Token": good}),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="agentctl"'


def test_changed_keys_are_used_without_a_restart(tmp_path: Path) -> None:
    """K06, K07: nothing but `/ready` is asked until the change is there."""
    path = tmp_path / "jwks.json"
    path.write_text(jwks(("old", OLD)))
    settings = serve(tmp_path, Authorization(jwks_file=(path,)))
    old, new = (
        bearer({"scopes": ["teams:read"]}, pair, kid=kid)
        for pair, kid in ((OLD, "old"), (NEW, "new"))
    )
    with serve_in_thread(Deployment(tmp_path), create_app(settings)) as host:

        def state() -> tuple[int, str, str | None]:
            answer = host.client.get("/ready")
            body = answer.json()
            return answer.status_code, body["status"], body["checks"].get("keys")

        assert state() == (200, "ready", None)
        assert ask(host, old).status_code == 200
        path.write_text("{")
        wait_for(lambda: state() == (200, "ready", "stale"))
        assert ask(host, old).status_code == 200, "the last good keys stay in force"
        assert str(tmp_path) not in host.client.get("/ready").text
        replace_file(path, jwks(("new", NEW)))
        wait_for(lambda: state() == (200, "ready", None))
        assert ask(host, old).status_code == 401, "also when it was remembered"
        assert ask(host, new).status_code == 200


def test_valid_tokens_pass_during_hostile_requests(host: ThreadedServer) -> None:
    """Good and bad ones in turn on one connection."""
    good = "Bearer " + token(RS, {**CLAIMS, "scopes": ["teams:read"]}, rs(OURS))
    for header in list(SENT.values())[::20]:
        assert ask(host, header).status_code == 401
        assert ask(host, good).status_code == 200
