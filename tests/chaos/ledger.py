"""The responses and events that clients received, and the violations that were found."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.server.concurrent_callers import Event

__all__ = ["Ledger", "RequestCounts", "RunNote"]


@dataclass
class RunNote:
    """A run that a client requested, and all that the client knows about it.

    Attributes:
        path: path of the component.
        message: the message, unique per run.
        key: the Idempotency-Key, if the request has one.
        recorded: True if the events of the run are stored.
        run_id: the run id, once a response or event has it.
        status: the final status, once a response or event has it.
        record: the response with the final status.
        events: the events received.
    """

    path: str
    session_id: str
    message: str
    key: str | None
    recorded: bool
    run_id: str | None = None
    status: str | None = None
    record: dict[str, Any] | None = None
    events: list[Event] = field(default_factory=list)


@dataclass
class RequestCounts:
    """The results of one kind of request.

    Attributes:
        seconds: durations of the successful requests.
        unavailable: number of 503 responses.
        broken: number of requests without a complete response.
    """

    seconds: list[float] = field(default_factory=list)
    unavailable: int = 0
    broken: int = 0


@dataclass
class Ledger:
    """The observations of all clients.

    Attributes:
        runs: every requested run.
        names: the names that each acknowledged session may have, by session id.
        requests: results by kind of request.
        violations: number of occurrences of each violated guarantee.
    """

    runs: list[RunNote] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    requests: defaultdict[str, RequestCounts] = field(
        default_factory=lambda: defaultdict(RequestCounts)
    )
    violations: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> list[RunNote]:
        """The runs with a known run id."""
        return [note for note in self.runs if note.run_id is not None]
