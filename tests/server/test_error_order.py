"""A missing resource is reported before other faults of a request (docs/contract.md "Errors")."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

LONG = "x" * 256

NOT_THERE: list[tuple[str, Any]] = [
    ("GET /sessions/{session}?type=user", None),
    ("GET /sessions/{session}?type=agent&type=team", None),
    ("GET /sessions/{session}/runs?limit=many", None),
    ("GET /sessions/{session}/runs?limit=0", None),
    ("GET /sessions/{session}/runs/{run}?type=user", None),
    ("DELETE /sessions/{session}?cancel=perhaps", None),
    ("PATCH /sessions/{session}", {"session_name": LONG}),
    ("PATCH /sessions/{session}", {"owner": 1}),
    ("PATCH /sessions/{session}?type=user", {}),
    ("POST /sessions/{session}/rename", {"session_name": LONG}),
    ("POST /sessions/{session}/rename?type=user", {}),
    ("POST /agents/echo/runs/{run}/cancel?session_id={session}&wait=soon", None),
    ("POST /agents/echo/runs/{run}/cancel?session_id={session}&wait=31", None),
    ("GET /agents/echo/runs/{run}?session_id={session}&session_id={session}", None),
    ("POST /agents/echo/runs/{run}/resume?session_id={session}&last_event_index=soon", None),
    ("POST /agents/echo/runs/{run}/resume?session_id={session}&last_event_index=-2", None),
    ("POST /agents/echo/runs/{run}/resume?session_id={session}", {"last_event_index": "x"}),
]
"""Requests whose session or run does not exist, and that are wrong besides."""

ALSO_NOT_THERE: list[tuple[str, Any]] = [
    ("GET /agents/nothing/runs?limit=many", None),
    ("GET /teams/nothing/runs?limit=0", None),
    ("GET /agents/echo/runs?limit=many&db_id=nothing", None),
    ("GET /sessions?limit=many&db_id=nothing", None),
    ("GET /sessions?limit=0&table=users", None),
    ("GET /runs?status=LOST&db_id=nothing", None),
    ("POST /sessions?db_id=nothing", {"owner": 1}),
    ("DELETE /sessions?db_id=nothing", {"session_ids": []}),
    ("POST /workflows/nothing/runs", {"message": 1}),
]
"""The same of components, databases and tables."""


def ask(server: ThreadedServer, who: str, request: str, body: Any) -> tuple[int, bytes, list[str]]:
    method, _, path = request.partition(" ")
    headers = as_caller(server, who)
    answer = server.client.request(method, path, headers=headers, json=body)
    # A response that starts before the whole body was received closes its connection.
    varying = {"x-request-id", "date", "connection"}
    told = [f"{key}: {value}" for key, value in answer.headers.items() if key not in varying]
    return answer.status_code, answer.content, told


@pytest.mark.parametrize(("request_line", "body"), NOT_THERE, ids=str)
def test_invisible_is_reported_as_missing(
    server: ThreadedServer, request_line: str, body: Any
) -> None:
    answers = [
        ask(server, who, request_line.format(session=session, run=run), body)
        for who, session, run in (
            ("me", "nothing", "nothing"),
            ("me", "theirs", server.ids["their_run"]),
        )
    ]
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    seen = request_line.format(session="theirs", run=server.ids["their_run"])
    assert ask(server, "other", seen, body)[0] == 422


@pytest.mark.parametrize(("request_line", "body"), ALSO_NOT_THERE, ids=str)
def test_missing_is_reported_before_invalid(
    server: ThreadedServer, request_line: str, body: Any
) -> None:
    assert ask(server, "me", request_line, body)[0] == 404
