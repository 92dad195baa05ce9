"""The channel over which the supervisor requests the metrics of a worker."""

from __future__ import annotations

import asyncio
import socket

import pytest

from agentctl.server.processes.metrics_endpoint import (
    MAXIMUM_PENDING_REQUESTS,
    MetricsChannel,
    answer_metrics_requests,
)
from tests.kit.conditions import PATIENCE


def test_metrics_that_cannot_be_written_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    failures = MAXIMUM_PENDING_REQUESTS + 1
    calls = 0

    def write(slot: int) -> str:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise ZeroDivisionError
        return f"slot {slot}"

    async def request_all() -> list[str | None]:
        ours, theirs = socket.socketpair()
        channel = await MetricsChannel.open(ours)
        try:
            async with asyncio.timeout(PATIENCE), answer_metrics_requests(theirs, write):
                return [await channel.request(3) for _ in range(failures + 1)]
        finally:
            channel.close()
            theirs.close()

    assert asyncio.run(request_all()) == [None] * failures + ["slot 3"]
    assert caplog.messages == ["the metrics of worker 3 cannot be written"] * failures
