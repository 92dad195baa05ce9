"""What the callers were told, and how they were served."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.server.load import Event

__all__ = ["Ledger", "RequestCounts", "RunNote"]


@dataclass
class RunNote:
    """A run that was asked for, and what its caller has heard of it.

    Attributes:
        message: like no other.
        key: its Idempotency-Key, if it has one.
        recorded: whether its events are kept.
        run_id: once an answer named it.
        status: a final one, once an answer gave it.
        record: the answer that gave it.
        heard: events that came.
    """

    path: str
    session_id: str
    message: str
    key: str | None
    recorded: bool
    run_id: str | None = None
    status: str | None = None
    record: dict[str, Any] | None = None
    heard: list[Event] = field(default_factory=list)


@dataclass
class RequestCounts:
    """How often one thing was done, and how that went.

    Attributes:
        seconds: how long each answer took that was no refusal.
        refused: how often the answer was 503.
        broken: how often there was none, or half of one.
    """

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    broken: int = 0


@dataclass
class Ledger:
    """All of it.

    Attributes:
        runs: every one that was asked for.
        names: of sessions that were acknowledged: those that each may have now.
        wrong: what must not have happened.
    """

    runs: list[RunNote] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    tried: defaultdict[str, RequestCounts] = field(
        default_factory=lambda: defaultdict(RequestCounts)
    )
    wrong: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> list[RunNote]:
        """Runs that an answer has named."""
        return [told for told in self.runs if told.run_id is not None]
