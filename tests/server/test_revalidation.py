"""Entity tags: which responses have one, and when a client gets a 304."""

from __future__ import annotations

import httpx2
import pytest

from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller, start

READS = (
    "/agents", "/teams/desk", "/sessions?limit=1&session_name=to-", "/sessions/mine",
    "/sessions/mine-workflow", "/sessions/mine/runs", "/sessions/mine/runs?view=summary",
    "/sessions/mine/runs/{agent_run}", "/runs?session_id=mine", "/runs/{agent_run}?cut=10",
    "/agents/echo/runs?session_id=mine&view=summary", "/agents/echo/runs/{agent_run}", "/config",
    "/auth/me",
)  # fmt: skip


def read(
    server: ThreadedServer, path: str, known: str | None = None, who: str = "me"
) -> httpx2.Response:
    for name, run_id in server.ids.items():
        path = path.replace(f"{{{name}}}", run_id)
    headers = as_caller(server, who) | ({} if known is None else {"If-None-Match": known})
    return server.client.get(path, headers=headers)


@pytest.mark.parametrize("path", READS)
def test_known_document_is_not_sent_again(server: ThreadedServer, path: str) -> None:
    first = read(server, path)
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag.removeprefix('W/')}", "*"):
        again = read(server, path, known)
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == tag
        assert again.headers["cache-control"] == "no-store"
        assert "content-length" not in again.headers
        assert "transfer-encoding" not in again.headers
    for unknown in ('"other"', tag.strip("W/").strip('"'), ""):
        again = read(server, path, unknown)
        assert (again.status_code, again.content) == (200, first.content), unknown


def test_tag_does_not_replace_the_authorization(server: ThreadedServer) -> None:
    for path in ("/sessions/mine", "/sessions/mine/runs", "/runs/{agent_run}"):
        tag = read(server, path).headers["etag"]
        for who, status in (("nobody", 401), ("powerless", 403), ("other", 404)):
            hidden = read(server, path, tag, who)
            assert (hidden.status_code, "etag" in hidden.headers) == (status, False)
    assert read(server, "/sessions/no", "*").status_code == 404
    assert read(server, "/sessions/mine?type=x", "*").status_code == 422
    assert read(server, "/sessions?limit=x", "*").status_code == 422


def test_public_and_changing_operations_have_no_tag(server: ThreadedServer) -> None:
    assert "etag" not in read(server, "/health").headers
    made = server.client.post("/sessions", json={}, headers=as_caller(server, "me"))
    assert made.status_code == 201
    assert "etag" not in made.headers


def test_tag_changes_with_each_change_of_a_session(server: ThreadedServer) -> None:
    me = as_caller(server, "me")
    client = server.client
    path = "/sessions/tagged"
    lists = ("/sessions?session_name=&limit=100", "/runs?session_id=tagged&view=summary")
    assert client.post("/sessions", json={"session_id": "tagged"}, headers=me).status_code == 201
    seen: set[str] = set()
    bodies = ({"session_name": "a"}, {"session_state": {"a": 1}}, {"metadata": {"b": 2}}, None)
    for body in bodies:
        before = [read(server, each).headers["etag"] for each in (path, *lists)]
        if body is None:
            assert start(server, "/agents/echo", "tagged").status_code == 200
        else:
            assert client.patch(path, json=body, headers=me).status_code == 200
        answers = [read(server, path, before[0]), read(server, lists[0], before[1])]
        if body is None:
            answers.append(read(server, lists[1], before[2]))
        assert [each.status_code for each in answers] == [200] * len(answers)
        seen.add(answers[0].headers["etag"])
    assert len(seen) == len(bodies)
    assert read(server, path, answers[0].headers["etag"]).status_code == 304
