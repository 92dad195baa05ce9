"""The events of a run as the streams of OpenAI's API read them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentctl.interface.requests import StreamEvent
from agentctl.records.events import END_STATUSES, EventKind, find_event_kind, parse_event
from agentctl.records.times import parse_rfc3339, whole_seconds

_READ_KINDS = frozenset({EventKind.CONTENT, EventKind.CONTINUED, EventKind.PAUSED, *END_STATUSES})
_FINISH_REASONS = {"length": "length", "content_filter": "content_filter"}


class AnswerEnd(NamedTuple):
    """The end of a run, or of one of its legs."""

    status: str | None
    """Its final status, or PAUSED; None if the stream ended without it."""

    finish_reason: str = "stop"
    """`stop`, `length` or `content_filter`."""

    metrics: Mapping[str, Any] | None = None
    """The counters of a completed run, or of this leg."""

    error: Mapping[str, Any] | None = None

    reason: str | None = None
    """The reason of a cancel."""

    waiting: Sequence[Mapping[str, Any]] = ()
    """The approvals that a paused run waits for."""


class Answer(NamedTuple):
    """The answer of a run, or of one of its legs."""

    run_id: str
    session_id: str

    created_at: int
    """Seconds since the epoch."""

    text: str

    end: AnswerEnd | None
    """The end; None while the run or the leg is at work."""

    leg: int = 1
    """The number of the leg, from 1."""

    is_queued: bool = False
    """True if the run has not begun."""

    version: str | None = None
    """The version of the component; None if it is not known."""


class LegStart(NamedTuple):
    """The place in a run from which a response begins."""

    leg: int = 1

    metrics: Mapping[str, Any] | None = None
    """The counters of the legs before it."""

    approval_id: str | None = None
    """The approval with whose decision the leg begins: the events before it belong to earlier
    responses. None to read from the first event."""


class RunEvents:
    """Reads the text and the end of one run from its events.

    Events of members, tools and thinking are left out.
    """

    def __init__(self, first: StreamEvent, start: LegStart | None = None) -> None:
        opening = parse_event(first.name, first.data).data
        self.run_id: str = opening["run_id"]
        self.session_id: str = opening["session_id"]
        self.created_at: int = opening["created_at"]
        self.version: str | None = opening.get("version")

        self._start = start or LegStart()
        self.leg = self._start.leg
        self._awaited_approval = self._start.approval_id
        self._has_separator = self.leg > 1
        self._has_ended = False

    def read(self, portion: list[StreamEvent]) -> Iterator[str | AnswerEnd]:
        """Yield the new texts and the end; an empty portion is the end of the stream."""
        for event in portion:
            kind = find_event_kind(event.name)
            if kind not in _READ_KINDS:
                continue

            run_event = parse_event(event.name, event.data, event.seq)
            if kind is EventKind.CONTINUED:
                # The approvals of a member are in the event of the member.
                approvals = run_event.data["approvals"]
                if self._awaited_approval in {approval["approval_id"] for approval in approvals}:
                    self._awaited_approval = None
                continue

            if run_event.run_id != self.run_id:
                continue

            if self._awaited_approval is not None:
                # An event of an earlier response.
                continue

            if kind is EventKind.CONTENT:
                text = run_event.text
                if self._has_separator:
                    # A run separates the texts of its answers; this text is the first here.
                    text = text.removeprefix("\n\n")
                    self._has_separator = False
                yield text
            else:
                self._has_ended = True
                data = run_event.data
                yield AnswerEnd(
                    status="PAUSED" if kind is EventKind.PAUSED else run_event.end_status,
                    finish_reason=_to_finish_reason(data.get("finish_reason")),
                    metrics=_subtract_metrics(data.get("metrics"), self._start.metrics),
                    error=data.get("error"),
                    reason=data.get("reason"),
                    waiting=data.get("approvals") or (),
                )

        if not portion and not self._has_ended:
            self._has_ended = True
            yield AnswerEnd(None)

    async def collect(
        self, first: list[StreamEvent], rest: AsyncIterable[list[StreamEvent]]
    ) -> Answer:
        """Read all events, and return the answer."""
        items = list(self.read(first))
        async for portion in rest:
            items += self.read(portion)
        items += self.read([])

        text = "".join(item for item in items if isinstance(item, str))
        end = next(item for item in items if isinstance(item, AnswerEnd))
        return self.build_answer(text, end)

    def build_answer(self, text: str, end: AnswerEnd | None) -> Answer:
        """Return the answer with a text and an end; None while the run continues."""
        return Answer(
            run_id=self.run_id,
            session_id=self.session_id,
            created_at=self.created_at,
            text=text,
            end=end,
            leg=self.leg,
            version=self.version,
        )


def format_leg_id(prefix: str, answer: Answer | RunEvents) -> str:
    """Return the id of a part of an answer: each leg of a run has its own."""
    if answer.leg == 1:
        return f"{prefix}{answer.run_id}"
    return f"{prefix}{answer.run_id}_{answer.leg}"


def read_leg_id(prefix: str, leg_id: object) -> str | None:
    """Return the id of the run of an answer; None for another id."""
    if not isinstance(leg_id, str) or not leg_id.startswith(prefix):
        return None
    return leg_id.removeprefix(prefix).partition("_")[0]


def read_answer(
    run: Mapping[str, Any], waiting_approvals: Sequence[Mapping[str, Any]] = ()
) -> Answer:
    """Return the answer of a run record of any status.

    Args:
        waiting_approvals: the approvals that a paused run waits for.
    """
    end = None
    if run["status"] not in ("PENDING", "RUNNING"):
        answers = [message for message in run["messages"] if message["role"] == "assistant"]
        finish_reason = answers[-1].get("finish_reason") if answers else None
        end = AnswerEnd(
            status=run["status"],
            finish_reason=_to_finish_reason(finish_reason),
            metrics=run["metrics"],
            error=run["error"],
            reason=run["cancel_reason"],
            waiting=waiting_approvals,
        )

    return Answer(
        run_id=run["run_id"],
        session_id=run["session_id"],
        created_at=whole_seconds(parse_rfc3339(run["created_at"])),
        text=run["content"] or "",
        end=end,
        is_queued=run["queue_position"] is not None,
        version=run["version"],
    )


def _subtract_metrics(
    metrics: Mapping[str, Any] | None, before: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the counters of a leg: the counters of its run minus those of the legs before."""
    if not metrics or not before:
        return metrics
    return {
        name: None if count is None else max(0, count - (before.get(name) or 0))
        for name, count in metrics.items()
    }


def _to_finish_reason(reason: str | None) -> str:
    """Return OpenAI's name of a finish reason of an answer (docs/contract.md "Run record")."""
    return _FINISH_REASONS.get(reason or "", "stop")
