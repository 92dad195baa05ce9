"""The spans of a run: the times of its model calls, tool calls, members and steps.

A span is recorded for each call, never for each token. The spans are stored with the end of the run
(docs/decisions/0053).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import Any, Literal

from agentctl.light_dataclass import dataclass
from agentctl.records.times import format_optional_time, format_rfc3339, now
from agentctl.work.run_scope import current_call

SpanKind = Literal["model", "tool", "member", "step"]

SpanStatus = Literal["completed", "failed", "cancelled"]

SPAN_STATUSES: dict[str, SpanStatus] = {
    "COMPLETED": "completed",
    "ERROR": "failed",
    "CANCELLED": "cancelled",
}
"""The status of a span for the final status of a run."""

CALL_PREFIX = "model-"
"""The beginning of the id of a model call; its number in the run follows."""

MAXIMUM_SPANS = 1_000
"""Maximum number of spans of a run; further ones are not stored."""


# Not frozen, and a plain class: a run creates several.
@dataclass(slots=True, eq=False)
class Span:
    """One part of a run. Times are microseconds UTC; see docs/contract.md "Run record".

    Attributes:
        answer: the message of a model call with its counters; None if there is none, or not in this
            process.
        error_code: the code of the failure of a model call; None if it is not known.
        response_model, response_id: the names that the provider has reported for the model and for
            its answer; None if it has not.
        repetition: number of earlier spans of the run with the same id: models repeat theirs.
    """

    kind: SpanKind
    id: str
    name: str
    parent: str | None
    started_at: int
    first_token_at: int | None = None
    finished_at: int | None = None
    status: SpanStatus | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    member_run_id: str | None = None
    answer: Mapping[str, Any] | None = field(default=None, repr=False)
    error_code: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    repetition: int = 0

    def mark_first_token(self) -> None:
        """Set the time of the first part of the answer, once."""
        if self.first_token_at is None:
            self.first_token_at = now()

    def end(self, status: SpanStatus, at: int | None = None) -> None:
        """Set the end, unless the span has ended."""
        if self.finished_at is None:
            # The clock may have gone back since.
            self.finished_at = max(now() if at is None else at, self.started_at)
            self.status = status

    def end_call(self, usage: Mapping[str, int] | None) -> None:
        """Set the end of a call of a model that a library has made.

        Args:
            usage: the counters of this call; None, or all zeros, if the library reports none.
        """
        if usage is not None and any(usage.values()):
            self.input_tokens, self.output_tokens = usage["input_tokens"], usage["output_tokens"]
            self.answer = {"metrics": usage}
        self.end("completed")

    def record(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "id": self.id,
            "name": self.name,
            "parent": self.parent,
            "started_at": format_rfc3339(self.started_at),
            "first_token_at": format_optional_time(self.first_token_at),
            "finished_at": format_optional_time(self.finished_at),
            "status": self.status,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "member_run_id": self.member_run_id,
        }


_NOT_STORED = ("answer", "error_code", "response_model", "response_id", "repetition")
_FIELDS = tuple(item.name for item in fields(Span) if item.name not in _NOT_STORED)


class Spans:
    """The spans of one run, in the order of their starts."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._model_calls = 0
        self._reported: set[Span] = set()
        self._counts: dict[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with all spans, for a checkpoint."""
        spans = [{name: getattr(span, name) for name in _FIELDS} for span in self._spans]
        return {"model_calls": self._model_calls, "spans": spans}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Spans:
        """Return the spans of a checkpoint; open ones are still open."""
        spans = cls()
        spans._model_calls = stored["model_calls"]
        spans._restore(stored["spans"])
        return spans

    @property
    def count(self) -> int:
        """The number of spans so far."""
        return len(self._spans)

    @property
    def model_calls(self) -> int:
        """The number of model calls so far."""
        return self._model_calls

    @property
    def first_model(self) -> str | None:
        """The model that was called first; None without a call."""
        return next((span.name for span in self._spans if span.kind == "model"), None)

    @property
    def last_model(self) -> str | None:
        """The model that was called last; None without a call."""
        return next((span.name for span in reversed(self._spans) if span.kind == "model"), None)

    @property
    def first_token_at(self) -> int | None:
        """The time of the first part of an answer of a model; None without one."""
        times = (span.first_token_at for span in self._spans)
        return min((time for time in times if time is not None), default=None)

    def since(self, count: int, *, tools: bool = False) -> dict[str, Any]:
        """Return the spans after the first `count` ones as JSON; those of tool calls on request."""
        added = (span for span in self._spans[count:] if tools or span.kind != "tool")
        spans = [{name: getattr(span, name) for name in _FIELDS} for span in added]
        return {"model_calls": self._model_calls, "spans": spans}

    def extend(self, added: Mapping[str, Any]) -> None:
        """Add what `since` has returned."""
        self._model_calls = added["model_calls"]
        self._restore(added["spans"])

    def take_ended(self) -> list[Span]:
        """Return the spans that have ended in this leg and were not taken before."""
        ended = [span for span in self._spans if span.finished_at is not None]
        new = [span for span in ended if span not in self._reported]
        self._reported.update(new)
        return new

    def start_model_call(self, model: str, at: int | None = None) -> Span:
        """Start the span of a call of a model, with its id in the configuration."""
        self._model_calls += 1
        return self._start("model", f"{CALL_PREFIX}{self._model_calls}", model, at)

    def rename_model_call(self, called: str, answered: str) -> None:
        """Name the latest open call of a model after the fallback that has answered it."""
        for span in reversed(self._spans):
            if span.kind == "model" and span.name == called and span.finished_at is None:
                span.name = answered
                return

    def find_open_call(self, model: str) -> Span | None:
        """Return the only open call of a model; None if there is none, or more than one."""
        wanted = "model", model, None
        found = [span for span in self._spans if (span.kind, span.name, span.finished_at) == wanted]
        return found[0] if len(found) == 1 else None

    def start_tool_call(self, call_id: str, name: str, at: int | None = None) -> Span:
        """Start the span of a tool call, now or at a time in microseconds UTC."""
        return self._start("tool", call_id, name, at)

    def start_step(self, index: int, name: str, at: int | None = None) -> Span:
        """Start the span of a step of a workflow, now or at a time."""
        return self._start("step", f"step-{index}", name, at)

    def start_member(
        self, run_id: str, component_id: str, at: int | None = None, parent_id: str | None = None
    ) -> Span:
        """Start the span of the run of a member or of a step, now or at a time.

        The tool call or the step that started it becomes its parent, and names its run: the one
        with the id `parent_id`, or else the current one.
        """
        call = current_call.get()
        if parent_id is None and call is not None:
            parent_id = call.id
        parent = self.find_open(parent_id) if parent_id is not None else None
        span = self._start("member", run_id, component_id, at)
        span.member_run_id = run_id
        if parent is not None:
            span.parent = parent.id
            parent.member_run_id = run_id
        return span

    def name_member(self, id: str, run_id: str) -> None:
        """Let an open span of a call or a step name the run of the member that it has started."""
        if (span := self.find_open(id)) is not None:
            span.member_run_id = run_id

    def has(self, id: str) -> bool:
        return any(span.id == id for span in self._spans)

    def end(self, id: str, status: SpanStatus, at: int) -> None:
        """End the open span with an id at a time in microseconds UTC, if there is one."""
        span = self.find_open(id)
        if span is not None:
            span.end(status, at)

    def find_parent(self, span: Span) -> Span | None:
        """Return the open tool call or step that started a member; None without one."""
        return None if span.parent is None else self.find_open(span.parent)

    def find_open_without_member(self) -> list[Span]:
        """Return the open tool calls and steps that name no run, in the order of their starts."""
        return [
            span
            for span in self._spans
            if span.finished_at is None and span.kind != "member" and span.member_run_id is None
        ]

    def end_all(self, status: SpanStatus, at: int) -> None:
        """End the spans that are open when the run ends."""
        for span in self._spans:
            span.end(status, at)

    def records(self) -> list[dict[str, Any]]:
        return [span.record() for span in self._spans]

    def _start(self, kind: SpanKind, id: str, name: str, at: int | None = None) -> Span:
        span = Span(kind, id, name, None, now() if at is None else at)
        if len(self._spans) < MAXIMUM_SPANS:
            self._add(span)
        return span

    def _restore(self, stored: Iterable[Mapping[str, Any]]) -> None:
        for values in stored:
            span = Span(**values)
            self._add(span)
            if span.finished_at is not None:
                self._reported.add(span)

    def _add(self, span: Span) -> None:
        span.repetition = self._counts.get(span.id, 0)
        self._counts[span.id] = span.repetition + 1
        self._spans.append(span)

    def find_open(self, id: str) -> Span | None:
        """Return the latest open span with an id; None if there is none."""
        open_spans = (span for span in reversed(self._spans) if span.finished_at is None)
        return next((span for span in open_spans if span.id == id), None)
