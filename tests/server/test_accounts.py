"""Service accounts over HTTP, with their tokens in the Authorization header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apsw
import httpx2
import pytest

from agentctl.auth.tokens import account_tokens
from agentctl.auth.tokens.account_tokens import generate_account_token
from agentctl.server import create_app
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy, Deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.seeds import as_caller
from tests.server.worker_server import WorkerServer

REFUSED = {"detail": "Invalid or expired credential", "error_code": "UNAUTHENTICATED"}


@pytest.fixture(scope="module")
def host(deploy: Deploy) -> Iterator[ThreadedServer]:
    """A server for this module."""
    with serve_in_thread(deploy()) as host:
        yield host


def create(host: ThreadedServer, name: str, *scopes: str, **more: Any) -> dict[str, Any]:
    body = {
        "name": name,
        "scopes": [{"scope": scope, "effect": "allow"} for scope in scopes],
        "allow_privileged_scopes": True,
        **more,
    }
    made = host.client.post("/service-accounts", json=body, headers=as_caller(host, "admin"))
    assert made.status_code == 201, made.text
    record: dict[str, Any] = made.json()
    return record


def ask(
    host: ThreadedServer, token: str, path: str = "/agents", method: str = "GET"
) -> httpx2.Response:
    return host.client.request(method, path, headers={"Authorization": f"Bearer {token}"})


def revoke(host: ThreadedServer, account_id: str) -> None:
    path = f"/service-accounts/{account_id}"
    assert host.client.delete(path, headers=as_caller(host, "admin")).status_code == 204


def test_token_has_only_the_granted_scopes(host: ThreadedServer) -> None:
    account = create(host, "reader", "agents:echo:read")
    token = account["token"]
    assert [agent["id"] for agent in ask(host, token).json()] == ["echo"]
    assert ask(host, token, "/agents/apart").status_code == 403
    assert ask(host, token, "/service-accounts").status_code == 403
    assert ask(host, token, "/nothing").status_code == 404
    me = ask(host, token, "/auth/me").json()
    assert (me["principal"], me["scopes"]) == (f"sa:{account['id']}", ["agents:echo:read"])


def test_account_owns_its_sessions(host: ThreadedServer) -> None:
    first = create(host, "first", ADMIN)
    second = create(host, "second", ADMIN)
    body = {"message": "x", "session_id": "of-first", "stream": False}
    started = host.client.post(
        "/agents/echo/runs", json=body, headers={"Authorization": f"Bearer {first['token']}"}
    )
    assert started.json()["user_id"] == f"sa:{first['id']}"
    assert ask(host, first["token"], "/sessions/of-first").status_code == 200
    theirs = ask(host, second["token"], "/sessions/of-first")
    missing = ask(host, second["token"], "/sessions/missing")
    assert (theirs.status_code, theirs.content) == (404, missing.content)


def test_jwt_cannot_name_an_account_as_subject(host: ThreadedServer) -> None:
    account = create(host, "imitated", "sessions:read")
    for subject in (f"sa:{account['id']}", f"SA:{account['id']}"):
        with pytest.raises(Exception, match="would reject this token"):
            host.deployment.token(subject, "sessions:read")


def bad_tokens(good: str) -> dict[str, str]:
    swapped = good[:-1] + ("a" if good[-1] != "a" else "b")
    return {
        "wrong checksum": swapped,
        "cut off": good[:-1],
        "longer": good + "0",
        "other prefix": good.replace("agentctl_", "other_", 1),
        "capital prefix": good.replace("agentctl_", "Agentctl_", 1),
        "unknown": generate_account_token(),
        "prefix alone": "agentctl_pat_",
        "as a JWT": f"agentctl_pat_{good}.e30.x",
        "hash of it": "agentctl_pat_" + "0" * 49,
    }


def test_all_invalid_account_tokens_get_the_same_response(host: ThreadedServer) -> None:
    good = create(host, "good", "agents:read")["token"]
    assert ask(host, good).status_code == 200
    answers = {name: ask(host, token) for name, token in bad_tokens(good).items()}
    gone = create(host, "gone", "agents:read")
    revoke(host, gone["id"])
    answers["revoked"] = ask(host, gone["token"])
    for name, answer in answers.items():
        assert (answer.status_code, answer.json()) == (401, REFUSED), name
        assert answer.headers["www-authenticate"].endswith('error="invalid_token"'), name
    for name, token in bad_tokens(good).items():
        assert ask(host, token, "/health").status_code == 200, name
        assert ask(host, token, "/nothing").status_code == 401, name


def test_revoked_token_is_rejected_by_the_next_request(host: ThreadedServer) -> None:
    account = create(host, "short", "agents:read")
    for _ in range(3):
        assert ask(host, account["token"]).status_code == 200
    revoke(host, account["id"])
    assert ask(host, account["token"]).status_code == 401


def test_token_is_only_in_the_first_response(host: ThreadedServer) -> None:
    token = create(host, "quiet", "agents:read", ADMIN)["token"]
    for path in ("/service-accounts?limit=100", "/auth/me", "/config", "/audit?limit=100"):
        answer = host.client.get(path, headers=as_caller(host, "admin"))
        assert answer.status_code == 200
        assert token[13:50] not in answer.text


def test_account_with_the_scope_manages_accounts(host: ThreadedServer) -> None:
    scopes = ("service_accounts:write", "service_accounts:delete", "teams:read")
    token = create(host, "parent", *scopes)["token"]
    headers = {"Authorization": f"Bearer {token}"}
    body: dict[str, Any] = {"name": "child", "scopes": [{"scope": "teams:crew:read"}]}
    child = host.client.post("/service-accounts", json=body, headers=headers)
    assert child.status_code == 201
    for scope in ("agents:read", ADMIN, "service_accounts:read"):
        stronger = body | {"scopes": [{"scope": scope}], "allow_privileged_scopes": True}
        refused = host.client.post("/service-accounts", json=stronger, headers=headers)
        assert (refused.status_code, refused.json()["required_scopes"]) == (403, [scope])
    path = f"/service-accounts/{child.json()['id']}"
    assert host.client.delete(path, headers=headers).status_code == 204
    assert ask(host, child.json()["token"], "/teams").status_code == 401


def test_openapi_describes_the_account_operations(host: ThreadedServer) -> None:
    document = host.client.get("/openapi.json").json()
    operation = document["paths"]["/service-accounts"]["post"]
    assert operation["tags"] == ["Service accounts"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    assert schema == {"$ref": "#/components/schemas/NewAccountBody"}
    grants = schemas["NewAccountBody"]["properties"]["scopes"]["items"]
    assert grants == {"$ref": "#/components/schemas/GrantBody"}
    grant = schemas["GrantBody"]
    assert (grant["required"], grant["additionalProperties"]) == (["scope"], False)
    assert "token" in schemas["NewAccountRecord"]["required"]
    assert "token" not in schemas["AccountRecord"]["properties"]


def test_many_unknown_tokens_do_not_block_valid_ones(
    host: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each request looks the valid token up.
    monkeypatch.setattr(account_tokens, "CACHE_SECONDS", 0)
    token = create(host, "steady", "agents:read")["token"]
    assert ask(host, token).status_code == 200
    for _ in range(2 * account_tokens.UNKNOWN_LOOKUPS_PER_SECOND):
        assert ask(host, generate_account_token()).status_code == 401
        assert ask(host, token).status_code == 200


def test_unavailable_database_is_503_and_never_a_pass(deployment: Deployment) -> None:
    with serve_in_thread(deployment) as host:
        token = create(host, "waiting", "agents:read")["token"]
        assert ask(host, token).status_code == 200
        connection = apsw.Connection(str(deployment.folder / "main.db"))
        connection.set_busy_timeout(5_000)
        connection.execute("ALTER TABLE service_accounts RENAME TO elsewhere")
        wait_for(lambda: ask(host, token).status_code != 200)
        for path in ("/agents", "/nothing", "/sessions/x"):
            answer = ask(host, token, path)
            assert (answer.status_code, answer.json()["error_code"]) == (503, "UNAVAILABLE")
            assert "service_accounts" not in answer.text
            assert "www-authenticate" not in answer.headers
        assert ask(host, token, "/health").status_code == 200
        assert ask(host, token[:-1]).status_code == 401
        connection.execute("ALTER TABLE elsewhere RENAME TO service_accounts")
        connection.close()
        assert ask(host, token).status_code == 200


def test_rejections_are_counted_by_cause(deployment: Deployment) -> None:
    app = create_app(deployment.settings)
    with serve_in_thread(deployment, app) as host:
        account = create(host, "counted", "agents:read")
        revoke(host, account["id"])
        for token in (account["token"], account["token"][:-1], generate_account_token()):
            assert [ask(host, token).status_code for _ in range(2)] == [401, 401]
    with serve_in_thread(deployment) as host:
        rows = host.client.get("/audit?operation=authenticate", headers=as_caller(host, "admin"))
    counts = {(row["reason"], row["count"]) for row in rows.json()["data"]}
    assert counts == {("account.revoked", 2), ("account.form", 2), ("account.known", 2)}


def test_revocation_reaches_every_worker(pair: WorkerServer) -> None:
    host = ThreadedServer(pair.deployment, pair.served.url, pair.client)
    account = create(host, "everywhere", "agents:read")
    for _ in range(12):
        assert _apart(host, account["token"]) == 200

    revoke(host, account["id"])

    # Of 20 connections, some meet each worker.
    wait_for(lambda: {_apart(host, account["token"]) for _ in range(20)} == {401})


def _apart(host: ThreadedServer, token: str) -> int:
    """Send a request on a new connection, which any worker may accept."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.get(f"{host.url}/agents", headers=headers, timeout=PATIENCE).status_code


def test_accounts_need_authorization_to_be_on(deployment: Deployment) -> None:
    given = replace(deployment.settings.authorization, enabled=False)
    with serve_in_thread(
        deployment, create_app(replace(deployment.settings, authorization=given))
    ) as host:
        body = {"name": "x", "scopes": [{"scope": ADMIN}], "allow_privileged_scopes": True}
        answers = (
            host.client.post("/service-accounts", json=body),
            host.client.get("/service-accounts"),
            host.client.delete("/service-accounts/x"),
        )
        assert {answer.status_code for answer in answers} == {403}
        assert ask(host, generate_account_token()).status_code == 200
