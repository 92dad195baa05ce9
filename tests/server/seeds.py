"""The callers, sessions and runs of the scenarios."""

from __future__ import annotations

import re
from typing import Any

import httpx2

from tests.kit.deployment import ADMIN
from tests.server.threaded_server import ThreadedServer

__all__ = ["ALL", "as_caller", "seed", "start"]

ALL = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "sessions:delete", "config:read",
)  # fmt: skip

CALLERS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "me": ("me", ALL),
    "other": ("other", ALL),
    "once": ("once", ALL),
    "admin": ("boss", (ADMIN,)),
    "powerless": ("me", ()),
    "one agent": ("me", ("agents:echo:read", "agents:echo:run", "sessions:read")),
    "one session": ("me", ("sessions:mine:read",)),
    "writer": ("me", ("sessions:write",)),
    "manager": (
        "max",
        ("agents:read", *(f"service_accounts:{action}" for action in ("read", "write", "delete"))),
    ),
    "auditor": ("eve", ("audit:read",)),
    "approver": ("amy", ("approvals:read", "approvals:write")),
    "rememberer": ("me", tuple(f"memories:{action}" for action in ("read", "write", "delete"))),
    "nameless": (None, ("memories:write",)),
}

BAD = {"Authorization": "Bearer not.a.token"}


def as_caller(host: ThreadedServer, who: str) -> dict[str, str]:
    """Return the header fields of a caller: `nobody` sends none, `bad` an invalid token."""
    if who in ("nobody", "bad"):
        return {} if who == "nobody" else BAD
    subject, scopes = CALLERS[who]
    return host.bearer(subject, *scopes)


def start(
    host: ThreadedServer, path: str, session_id: str, who: str = "me", **more: Any
) -> httpx2.Response:
    """Start a run and return its final record."""
    body = {"message": "hello", "session_id": session_id, "stream": False, **more}
    return host.client.post(f"{path}/runs", json=body, headers=as_caller(host, who))


def seed(host: ThreadedServer) -> None:
    """Create sessions of every kind for two users, and service accounts.

    The ids of their runs get the names that scenarios use.
    """
    page = host.client.get("/console").text
    host.ids["console_assets"] = "/" + re.findall(r"console/assets/\w+", page)[0]
    runs = (
        ("agent_run", "/agents/echo", "mine", "me"),
        ("team_run", "/teams/desk", "mine-team", "me"),
        ("workflow_run", "/workflows/line", "mine-workflow", "me"),
        ("their_run", "/agents/echo", "theirs", "other"),
        ("only_run", "/agents/echo", "only", "once"),
    )
    for name, path, session_id, who in runs:
        answer = start(host, path, session_id, who)
        assert answer.status_code == 200, answer.text
        host.ids[name] = answer.json()["run_id"]
        for call in answer.json()["tools"]:
            host.ids[f"{name}_call"] = call["tool_call_id"]
    summed = start(host, "/agents/summed", "summed", "me")
    assert summed.status_code == 200, summed.text
    for session_id in ("to-delete", "to-rename", "bulk-1", "bulk-2"):
        body = {"session_id": session_id, "agent_id": "echo"}
        made = host.client.post("/sessions", json=body, headers=as_caller(host, "me"))
        assert made.status_code == 201, made.text
    for name in ("kept", "doomed"):
        grant = {"scope": "agents:read", "effect": "allow"}
        made = host.client.post(
            "/service-accounts",
            json={"name": name, "scopes": [grant]},
            headers=as_caller(host, "admin"),
        )
        assert made.status_code == 201, made.text
        host.ids[f"{name}_account"] = made.json()["id"]
    memories = {
        "my_memory": ("me", "Likes green tea", ["food"]),
        "old_memory": ("me", "Lives in Rome", []),
        "their_memory": ("other", "Likes black tea", ["secret"]),
        "bulk_memory": ("me", "Has a dog", ["pets"]),
    }
    for name, (user, text, topics) in memories.items():
        body = {"memory": text, "topics": topics, "user_id": user}
        made = host.client.post("/memories", json=body, headers=as_caller(host, "admin"))
        assert made.status_code == 201, made.text
        host.ids[name] = made.json()["memory_id"]
    for name, who in (("my_file", "me"), ("old_file", "me"), ("their_file", "other")):
        query = {"name": f"{name}.txt"}
        made = host.client.post(
            "/files", params=query, content=name.encode(), headers=as_caller(host, who)
        )
        assert made.status_code == 201, made.text
        host.ids[name] = made.json()["file_id"]
