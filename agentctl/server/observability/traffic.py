"""The requests of a process, counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentctl.records.numbers import DurationHistogram
from agentctl.server.observability.log import FinishedRequest

__all__ = ["RequestCounters", "RequestKind"]

DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Seconds: from a read to a run that is followed to its end."""

NO_OPERATION = "none"
"""Of a request for what there is not."""

NO_STATUS = "none"
"""Of a request whose client did not wait for the answer."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"


class RequestKind(NamedTuple):
    """What requests are told apart by: each part has few values, whatever callers send."""

    operation: str
    method: str
    status: str


class RequestCounters:
    """Counts requests by kind, from one thread."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str | None, str, int], DurationHistogram] = {}

    def count(self, request: FinishedRequest) -> None:
        """Count one (`access.Watcher`)."""
        method = request.method if request.method in _METHODS else _OTHER
        key = (request.operation, method, (request.status or 0) // 100)
        counted = self._kinds.get(key)
        if counted is None:
            counted = self._kinds[key] = DurationHistogram(DURATION_BUCKETS)
        counted.add(request.seconds)

    def by_kind(self) -> Iterator[tuple[RequestKind, DurationHistogram]]:
        """Every kind that there was."""
        for (operation, method, hundreds), counted in self._kinds.items():
            status = f"{hundreds}xx" if hundreds else NO_STATUS
            yield RequestKind(operation or NO_OPERATION, method, status), counted
