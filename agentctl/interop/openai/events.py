"""The events of a run as the streams of OpenAI's API read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentctl.records.events import END_STATUSES, EventKind, find_event_kind, parse_event
from agentctl.requests import StreamEvent

_READ_KINDS = frozenset({EventKind.CONTENT, EventKind.PAUSED, *END_STATUSES})
_FINISH_REASONS = {"length": "length", "content_filter": "content_filter"}


class RunEnd(NamedTuple):
    """The end of a run.

    Attributes:
        status: its final status, or PAUSED; None if the stream ended without it.
        finish_reason: `stop`, `length` or `content_filter`.
        metrics: the counters of a completed run.
        error: `code` and `detail` of a failed run.
        reason: the reason of a cancel.
    """

    status: str | None
    finish_reason: str = "stop"
    metrics: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    reason: str | None = None


class RunEvents:
    """Reads the text and the end of one run from its events.

    Events of members, tools and thinking are left out.

    Args:
        first: the first event of the run.

    Attributes:
        run_id, session_id: ids of the run and of its session.
        created_at: time of the first event in seconds.
    """

    def __init__(self, first: StreamEvent) -> None:
        opening = parse_event(first.name, first.data).data
        self.run_id: str = opening["run_id"]
        self.session_id: str = opening["session_id"]
        self.created_at: int = opening["created_at"]
        self._ended = False

    def read(self, portion: list[StreamEvent]) -> Iterator[str | RunEnd]:
        """Yield the new texts and the end; an empty portion is the end of the stream."""
        for event in portion:
            kind = find_event_kind(event.name)
            if kind not in _READ_KINDS:
                continue
            parsed = parse_event(event.name, event.data, event.seq)
            if parsed.run_id != self.run_id:
                continue
            if kind is EventKind.CONTENT:
                yield parsed.text
            else:
                data, self._ended = parsed.data, True
                yield RunEnd(
                    "PAUSED" if kind is EventKind.PAUSED else parsed.end_status,
                    to_finish_reason(data.get("finish_reason")),
                    data.get("metrics"),
                    data.get("error"),
                    data.get("reason"),
                )
        if not portion and not self._ended:
            self._ended = True
            yield RunEnd(None)


def to_finish_reason(reason: str | None) -> str:
    """Return OpenAI's finish reason for that of an answer (docs/contract.md "Run record")."""
    return _FINISH_REASONS.get(reason or "", "stop")


def find_finish_reason(run: Mapping[str, Any]) -> str:
    """Return OpenAI's finish reason of a run record: that of its last answer."""
    answers = [message for message in run["messages"] if message["role"] == "assistant"]
    return to_finish_reason(answers[-1].get("finish_reason") if answers else None)
