"""Rate limits of callers, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.errors import RateLimited
from agentctl.service.hosting import MAXIMUM_CALLERS, RateLimiter
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

LIMITS = "[rate_limits]\nrequests_per_minute = 6\nruns_per_minute = 2\n"


@pytest.fixture(scope="module")
def limited(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_in_thread(deploy(LIMITS, server='compatibility = "agentos"')) as started:
        yield started


def test_requests_of_one_caller_are_limited(limited: ThreadedServer) -> None:
    ann = limited.bearer("ann", "sessions:read")
    statuses = [limited.client.get("/sessions", headers=ann).status_code for _ in range(6)]
    refused = limited.client.get("/sessions", headers=ann)
    assert statuses == [200] * 6
    assert refused.status_code == 429
    assert refused.json()["error_code"] == "RATE_LIMITED"
    assert 1 <= int(refused.headers["Retry-After"]) <= 10
    assert limited.client.get("/health", headers=ann).status_code == 200
    ben = limited.bearer("ben", "sessions:read")
    assert limited.client.get("/sessions", headers=ben).status_code == 200


def test_denied_requests_are_not_counted(limited: ThreadedServer) -> None:
    headers = limited.bearer("dan", "agents:read")
    statuses = {limited.client.get("/audit", headers=headers).status_code for _ in range(8)}
    assert statuses == {403}
    assert limited.client.get("/agents", headers=headers).status_code == 200


def test_starts_of_one_caller_are_limited_and_repeats_are_free(limited: ThreadedServer) -> None:
    eve = limited.bearer("eve", "agents:run")
    body: dict[str, Any] = {"message": "x", "session_id": "s1", "stream": False}

    def start(key: str) -> Any:
        headers = eve | {"Idempotency-Key": key}
        return limited.client.post("/agents/echo/runs", json=body, headers=headers)

    first = start("one")
    assert (first.status_code, start("two").status_code) == (200, 200)
    refused = start("three")
    assert (refused.status_code, refused.json()["error_code"]) == (429, "RATE_LIMITED")
    assert "2 runs a minute" in refused.json()["detail"]
    again = start("one")
    assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])


def take(limit: RateLimiter, caller: str) -> float:
    """Return 0, or the seconds after which a caller that is refused may try again."""
    try:
        limit.take(caller)
    except RateLimited as refused:
        return refused.retry_after or 0
    return 0


def test_bucket_fills_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1_000.0
    monkeypatch.setattr("agentctl.service.hosting.time.monotonic", lambda: at)
    limit = RateLimiter(60, "sent {} requests")
    assert [take(limit, "a") for _ in range(60)] == [0] * 60
    assert take(limit, "a") == 1
    at += 0.5
    assert take(limit, "a") == 0.5
    at += 0.5
    assert (take(limit, "a"), take(limit, "a")) == (0, 1)


def test_number_of_kept_callers_is_bounded() -> None:
    limit = RateLimiter(1, "sent {} requests")
    assert take(limit, "first") == 0
    for number in range(MAXIMUM_CALLERS + 5):
        take(limit, f"caller-{number}")
    assert len(limit._buckets) == MAXIMUM_CALLERS
    assert take(limit, "first") == 0
