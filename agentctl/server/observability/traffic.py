"""Request counters of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentctl.records.durations import DurationHistogram
from agentctl.server.observability.log import FinishedRequest

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
        method = request.method if request.method in _METHODS else _OTHER
        key = (request.operation, method, (request.status or 0) // 100)
        counted = self._kinds.get(key)
        if counted is None:
            counted = self._kinds[key] = DurationHistogram(DURATION_BUCKETS)
        counted.add(request.seconds)

    def by_kind(self) -> Iterator[tuple[RequestKind, DurationHistogram]]:
        """Yield the durations of each kind of request."""
        for (operation, method, hundreds), counted in self._kinds.items():
            status = f"{hundreds}xx" if hundreds else NO_STATUS
            yield RequestKind(operation or NO_OPERATION, method, status), counted
