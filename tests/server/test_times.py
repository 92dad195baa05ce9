"""Times in queries: the ends of their range at every interface, and a + that is not encoded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentctl.records.times import EARLIEST, LATEST, format_rfc3339, parse_rfc3339
from tests.kit.threaded_server import ThreadedServer

ADMIN = "agent_os:admin"
ENDS = (
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00.000001Z",
    "0001-01-01T00:00:00+00:01",
    "0001-01-31T00:00:00Z",
    "9999-12-31T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-00:01",
    "1970-01-01T00:00:00Z",
)


def find_times(server: ThreadedServer) -> list[tuple[str, str]]:
    """Return the path and the name of each parameter that is a time."""
    document: dict[str, Any] = server.client.get("/openapi.json").json()
    found = []
    for path, methods in document["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", ()):
            if "date-time" in str(parameter["schema"]):
                found.append((re.sub(r"\{\w+\}", "unknown", path), parameter["name"]))
    return found


def test_times_at_the_ends_of_their_range_are_answered(server: ThreadedServer) -> None:
    times = find_times(server)
    assert ("/usage", "before") in times
    assert len(times) > 10
    headers = server.bearer("root", ADMIN)
    for path, name in times:
        for end in ENDS:
            answer = server.client.get(path, params={name: end}, headers=headers)
            assert answer.status_code in {200, 404, 422}, (path, name, end, answer.text)


def test_times_beyond_the_range_are_not_parsed() -> None:
    assert format_rfc3339(EARLIEST) == "0001-01-01T00:00:00.000000Z"
    assert format_rfc3339(LATEST) == "9999-12-31T23:59:59.999999Z"
    for text in ("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01"):
        with pytest.raises(ValueError, match="years 1 to 9999"):
            parse_rfc3339(text)


def test_plus_that_is_not_encoded_is_explained(server: ThreadedServer) -> None:
    headers = server.bearer("root", ADMIN)
    wrong = server.client.get("/sessions?created_after=2026-11-29T07:27:38+00:00", headers=headers)
    assert wrong.status_code == 422
    assert "write it as %2B" in wrong.json()["detail"]
    right = server.client.get(
        "/sessions?created_after=2026-11-29T07:27:38%2B00:00", headers=headers
    )
    assert right.status_code == 200
    other = server.client.get("/sessions?created_after=yesterday+noon", headers=headers)
    assert "%2B" not in other.json()["detail"]
