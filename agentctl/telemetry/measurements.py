"""The measurements of a process: its requests, and the lag of its event loop.

The lag is sampled while a server runs, and logged when it is long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple

from agentctl.records.times import DurationHistogram
from agentctl.telemetry.log import FinishedRequest

DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Bounds in seconds, for short reads and for streams of long runs."""

NO_OPERATION = "none"
"""Label of a request for an unknown path."""

NO_STATUS = "none"
"""Label of a request whose client disconnected before the response."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"

SAMPLE_SECONDS = 0.25
"""Interval of the samples."""

WARNING_SECONDS = 1.0
"""A longer lag is logged."""

WARNING_INTERVAL_SECONDS = 60.0
"""Minimum time between two warnings."""

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_log = logging.getLogger("agentctl.server")


class RequestKind(NamedTuple):
    """Labels of a request. Each has few values, because callers cannot add any."""

    operation: str
    method: str
    status: str


class RequestCounters:
    """Counts and durations of requests by kind. Not thread-safe."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str | None, str, int], DurationHistogram] = {}

    def count(self, request: FinishedRequest) -> None:
        """Count a finished request."""
        method = request.method if request.method in _METHODS else _OTHER
        key = (request.operation, method, (request.status or 0) // 100)
        durations = self._kinds.get(key)
        if durations is None:
            durations = DurationHistogram(DURATION_BUCKETS)
            self._kinds[key] = durations
        durations.add(request.seconds)

    def by_kind(self) -> Iterator[tuple[RequestKind, DurationHistogram]]:
        """Yield the durations of each kind of request."""
        for (operation, method, hundreds), durations in self._kinds.items():
            status = f"{hundreds}xx" if hundreds else NO_STATUS
            yield RequestKind(operation or NO_OPERATION, method, status), durations


class LoopLag:
    """Samples of the seconds between the planned and the actual time of a callback."""

    def __init__(self) -> None:
        self.samples = DurationHistogram(LAG_BUCKETS)
        self._quiet_until = float("-inf")
        self._longest = 0.0

    @contextlib.contextmanager
    def sample_in_background(self) -> Iterator[None]:
        """Sample while the block lasts."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def sample(due: float) -> None:
            nonlocal timer
            now = loop.time()
            self._record(max(now - due, 0.0), now)
            timer = loop.call_later(SAMPLE_SECONDS, sample, now + SAMPLE_SECONDS)

        timer = loop.call_later(SAMPLE_SECONDS, sample, loop.time() + SAMPLE_SECONDS)
        try:
            yield
        finally:
            timer.cancel()

    def _record(self, lag: float, now: float) -> None:
        """Add a sample, and log the longest lag since the last warning."""
        self.samples.add(lag)
        if lag > WARNING_SECONDS:
            self._longest = max(self._longest, lag)
        if not self._longest or now < self._quiet_until:
            return

        longest = self._longest
        self._longest = 0.0
        self._quiet_until = now + WARNING_INTERVAL_SECONDS
        _log.warning(
            "the event loop was blocked for %.1f s, for example by a tool that does not await:"
            " all requests and runs of this process waited",
            longest,
        )
