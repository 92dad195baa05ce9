"""Names of other users in requests: only administrators create or delete data of another user."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

WRITER = ("memories:write", "memories:read", "memories:delete", "sessions:write", "sessions:read")

CREATED: list[tuple[str, dict[str, Any]]] = [
    ("/memories", {"memory": "Likes tea"}),
    ("/sessions?type=agent", {"session_name": "x"}),
]


@pytest.mark.parametrize(("path", "body"), CREATED, ids=["memories", "sessions"])
def test_data_for_another_user_needs_an_administrator(
    server: ThreadedServer, path: str, body: dict[str, Any]
) -> None:
    bob = server.bearer("bob", *WRITER)
    denied = server.client.post(path, json={**body, "user_id": "alice"}, headers=bob)
    assert denied.status_code == 403, denied.text
    assert denied.json()["required_scopes"] == [ADMIN]
    for given in ({}, {"user_id": None}, {"user_id": "bob"}):
        created = server.client.post(path, json={**body, **given}, headers=bob)
        assert (created.status_code, created.json()["user_id"]) == (201, "bob")
    root = server.bearer("root", ADMIN)
    created = server.client.post(path, json={**body, "user_id": "alice"}, headers=root)
    assert (created.status_code, created.json()["user_id"]) == (201, "alice")


def test_deletion_of_all_memories_of_another_user_is_denied(server: ThreadedServer) -> None:
    carol, dave = (server.bearer(name, *WRITER) for name in ("carol", "dave"))
    server.client.post("/memories", json={"memory": "Likes tea"}, headers=carol)
    everything = {"all": True, "user_id": "carol"}
    denied = server.client.request("DELETE", "/memories", json=everything, headers=dave)
    assert (denied.status_code, denied.json()["required_scopes"]) == (403, [ADMIN])
    listed = server.client.get("/memories", headers=carol).json()["data"]
    assert [each["memory"] for each in listed] == ["Likes tea"]
    own = server.client.request("DELETE", "/memories", json=everything, headers=carol)
    assert own.status_code == 204
    assert server.client.get("/memories", headers=carol).json()["data"] == []
