"""Common header fields, HEAD, methods and credentials of all responses."""

from __future__ import annotations

import uuid

import httpx2
import pytest

from agentctl.errors import NO_SUCH_PATH
from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller, start

EVERY_KIND = {
    "success": ("GET", "/teams", "me", 200),
    "public": ("GET", "/health", "nobody", 200),
    "page": ("GET", "/docs", "nobody", 200),
    "unauthenticated": ("GET", "/teams", "nobody", 401),
    "forbidden": ("GET", "/teams", "powerless", 403),
    "not found": ("GET", "/nothing", "me", 404),
    "method": ("PUT", "/teams", "me", 405),
    "media type": ("POST", "/sessions", "me", 415),
    "refused": ("GET", "/sessions?limit=x", "me", 422),
}


def ask(server: ThreadedServer, kind: str, **more: str) -> httpx2.Response:
    method, path, who, status = EVERY_KIND[kind]
    content = "x" if method == "POST" else None
    headers = as_caller(server, who) | more
    answer = server.client.request(method, path, headers=headers, content=content)
    assert answer.status_code == status
    return answer


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_response_has_the_common_headers(server: ThreadedServer, kind: str) -> None:
    answer = ask(server, kind)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    rules = answer.headers["content-security-policy"]
    assert rules.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in rules
    assert ("script-src" in rules) is (kind == "page")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_response_has_a_new_request_id(server: ThreadedServer, kind: str) -> None:
    given = str(uuid.uuid4())
    ids = [ask(server, kind, **{"X-Request-ID": given}).headers["x-request-id"] for _ in range(2)]
    assert len({*ids, given}) == 3
    assert [uuid.UUID(text).version for text in ids] == [7, 7]


def test_runs_have_the_id_of_the_request_that_started_them(server: ThreadedServer) -> None:
    answer = start(server, "/teams/desk", "traced")
    run = answer.json()
    request_id = answer.headers["x-request-id"]
    assert run["request_id"] == request_id
    listed = server.client.get(
        "/runs?session_id=traced&view=summary", headers=as_caller(server, "me")
    )
    found = {each["run_id"]: each["request_id"] for each in listed.json()["data"]}
    assert found.keys() == {run["run_id"], *run["member_runs"]}
    assert set(found.values()) == {request_id}


@pytest.mark.parametrize("path", ["/teams", "/sessions/mine", "/health", "/docs", "/nothing"])
def test_head_is_get_without_the_body(server: ThreadedServer, path: str) -> None:
    headers = as_caller(server, "me")
    got = server.client.get(path, headers=headers)
    head = server.client.head(path, headers=headers)
    assert head.status_code == got.status_code
    assert head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/sessions/mine", "DELETE, GET, HEAD, PATCH"),
        ("OPTIONS", "/teams", "GET, HEAD"),
        ("TRACE", "/health", "GET, HEAD"),
        ("HEAD", "/agents/echo/runs/x/cancel", "POST"),
        ("DELETE", "/docs/assets/docs.js", "GET, HEAD"),
    ],
)
def test_405_lists_the_allowed_methods(
    server: ThreadedServer, method: str, path: str, allow: str
) -> None:
    answer = server.client.request(method, path, headers=as_caller(server, "me"))
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert server.client.request(method, path).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/teams/",
        "//teams",
        "/TEAMS",
        "/teams%2f",
        "/teams%0a",
        "/teams;x",
        "/sessions/mine/",
        "/sessions//runs",
        "/docs/",
        "/nothing",
        "/teams%00",
    ],
)
def test_almost_correct_paths_are_not_found(server: ThreadedServer, path: str) -> None:
    url = f"{server.url}{path}"  # The client would normalize a relative path.
    answer = server.client.get(url, headers=as_caller(server, "me"))
    assert answer.status_code == 404
    assert answer.json() == {"detail": NO_SUCH_PATH, "error_code": "NOT_FOUND"}
    assert server.client.get(url).status_code == 401


def test_invisible_and_missing_have_the_same_response(server: ThreadedServer) -> None:
    headers = as_caller(server, "me")
    answers = [server.client.get(f"/sessions/{name}", headers=headers) for name in ("theirs", "no")]
    assert answers[0].content == answers[1].content
    assert answers[0].headers.keys() == answers[1].headers.keys()


def test_two_credentials_are_a_bad_request(server: ThreadedServer) -> None:
    credential = as_caller(server, "me")["Authorization"]
    for second in (credential, "Bearer other", ""):
        headers = [("Authorization", credential), ("Authorization", second)]
        assert server.client.get("/teams", headers=headers).status_code == 400
    for second in (credential, "bearer x"):
        answer = server.client.get("/teams", headers={"Authorization": f"{credential}, {second}"})
        assert answer.status_code == 400
        assert answer.json()["detail"] == "The request has more than one credential"


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer"])
def test_bearer_scheme_is_case_insensitive(server: ThreadedServer, scheme: str) -> None:
    token = server.deployment.token("me", "teams:read")
    headers = {"Authorization": f"{scheme} {token}"}
    assert server.client.get("/teams", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "form", ["{}", "Basic {}", "Bearer", "Bearer  {}", "Bearer\t{}", "Bearer {} x"]
)
def test_other_credential_formats_are_rejected(server: ThreadedServer, form: str) -> None:
    headers = {"Authorization": form.format(server.deployment.token("me", "teams:read"))}
    answer = server.client.get("/teams", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["detail"] == "Invalid or expired credential"


def test_paths_do_not_get_into_header_fields(server: ThreadedServer) -> None:
    path = "/agents/x%0d%0aSet-Cookie:%20a=b%22,%20error=%22none"
    answer = server.client.get(path, headers=as_caller(server, "one agent"))
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert "\n" not in answer.headers["www-authenticate"]
    assert answer.headers["www-authenticate"].count('error="') == 1
