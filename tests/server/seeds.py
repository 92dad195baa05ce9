"""Sessions and runs that tests read, and requests of callers."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.kit.callers import build_token
from tests.kit.threaded_server import ThreadedServer

__all__ = ["as_caller", "seed", "start"]


def as_caller(host: ThreadedServer, who: str) -> dict[str, str]:
    """Return the header fields of a caller of `tests.kit.callers`."""
    token = build_token(host.deployment, who)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def start(
    host: ThreadedServer, path: str, session_id: str, who: str = "me", **more: Any
) -> httpx2.Response:
    """Start a run and return its final record."""
    body = {"message": "hello", "session_id": session_id, "stream": False, **more}
    return host.client.post(f"{path}/runs", json=body, headers=as_caller(host, who))


def seed(host: ThreadedServer) -> None:
    """Create sessions of every kind for one user and a session for another, each with a run.

    `host.ids` has the ids of the runs.
    """
    runs = (
        ("agent_run", "/agents/echo", "mine", "me"),
        ("team_run", "/teams/desk", "mine-team", "me"),
        ("workflow_run", "/workflows/line", "mine-workflow", "me"),
        ("their_run", "/agents/echo", "theirs", "other"),
    )
    for name, path, session_id, who in runs:
        answer = start(host, path, session_id, who)
        assert answer.status_code == 200, answer.text
        host.ids[name] = answer.json()["run_id"]
