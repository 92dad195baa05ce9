"""The spans of a run, and its trace, as the current span of OpenTelemetry.

A span has the times of a model call, a tool call, a member or a step. It is recorded for each call,
never for each token, and stored with the end of the run (decision 53). Spans that a library
or a tool creates nest below the span of the run, of the tool call or of the model call that
executes. The spans of the server itself are built when a leg has ended, from what the transcript
has recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from agentctl.records.logs import RunTrace, TraceContext, derive_span_id
from agentctl.records.runs import SpanRecord
from agentctl.records.times import format_optional_time, format_rfc3339, now
from agentctl.work.run_scope import CurrentCall, current_call

if TYPE_CHECKING:
    from opentelemetry.context import Context


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
"""Maximum number of spans of a run; further spans are not stored."""

MAXIMUM_TOKENS = 10**12
"""Maximum of a reported counter. The sum over any session then fits into 64 bits."""


def bound_count(value: object) -> int:
    """Return a reported number of tokens from 0 to `MAXIMUM_TOKENS`; 0 for another value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return int(min(max(0, value), MAXIMUM_TOKENS))


# Not frozen, and a plain class: a run creates several.
@dataclass(slots=True, eq=False)
class Span:
    """One part of a run. Times are microseconds UTC; see docs/contract.md "Run record"."""

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
    """The message of a model call with its counters; None if there is none, or not in this process.
    """

    error_code: str | None = None
    """The code of the failure of a model call; None if it is not known."""

    response_model: str | None = None
    """The name of the model as the provider has reported it; None if it has not."""

    response_id: str | None = None
    """The id of the answer as the provider has reported it; None if it has not."""

    repetition: int = 0
    """Number of earlier spans of the run with the same id: models repeat theirs."""

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

    def end_call(
        self, usage: Mapping[str, int] | None, status: SpanStatus, error_code: str | None = None
    ) -> None:
        """Set the end of a call of a model that a library or code has made.

        Args:
            usage: the counters of this call; None if they are not known.
            error_code: the code of its failure, if it is known.
        """
        if usage is not None:
            counts = {name: bound_count(count) for name, count in usage.items()}
            self.input_tokens = counts["input_tokens"]
            self.output_tokens = counts["output_tokens"]
            self.answer = {"metrics": counts}
        self.error_code = self.error_code or error_code
        self.end(status)

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SpanRecord.__annotations__} | {
            "started_at": format_rfc3339(self.started_at),
            "first_token_at": format_optional_time(self.first_token_at),
            "finished_at": format_optional_time(self.finished_at),
        }


_NOT_STORED = ("answer", "error_code", "response_model", "response_id", "repetition")
_FIELDS = tuple(item.name for item in fields(Span) if item.name not in _NOT_STORED)


class Spans:
    """The spans of one run, in the order of their starts.

    Attributes:
        model_calls: the number of model calls so far.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self.model_calls = 0
        self._reported: set[Span] = set()
        self._counts: dict[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with all spans, for a checkpoint."""
        spans = [{name: getattr(span, name) for name in _FIELDS} for span in self._spans]
        return {"model_calls": self.model_calls, "spans": spans}

    @classmethod
    def from_json(cls, checkpoint: Mapping[str, Any]) -> Spans:
        """Return the spans of a checkpoint; open spans stay open."""
        spans = cls()
        spans.model_calls = checkpoint["model_calls"]
        spans._restore(checkpoint["spans"])
        return spans

    @property
    def count(self) -> int:
        """The number of spans so far."""
        return len(self._spans)

    @property
    def next_call_id(self) -> str:
        """The id of the next model call."""
        return f"{CALL_PREFIX}{self.model_calls + 1}"

    @property
    def first_model(self) -> str | None:
        """The model that was called first; None without a call."""
        for span in self._spans:
            if span.kind == "model":
                return span.name
        return None

    @property
    def last_model(self) -> str | None:
        """The model that was called last; None without a call."""
        return next((span.name for span in reversed(self._spans) if span.kind == "model"), None)

    @property
    def first_token_at(self) -> int | None:
        """The time of the first part of an answer of a model; None before that part."""
        times = [span.first_token_at for span in self._spans if span.first_token_at is not None]
        return min(times, default=None)

    def since(self, count: int, *, tools: bool = False) -> dict[str, Any]:
        """Return the spans after the first `count` as JSON; spans of tool calls on request."""
        new_spans = (span for span in self._spans[count:] if tools or span.kind != "tool")
        spans = [{name: getattr(span, name) for name in _FIELDS} for span in new_spans]
        return {"model_calls": self.model_calls, "spans": spans}

    def extend(self, changes: Mapping[str, Any]) -> None:
        """Add what `since` has returned."""
        self.model_calls = changes["model_calls"]
        self._restore(changes["spans"])

    def take_ended(self) -> list[Span]:
        """Return the spans that have ended in this leg and were not taken before."""
        reported = self._reported
        ended_spans = [
            span for span in self._spans if span.finished_at is not None and span not in reported
        ]
        self._reported.update(ended_spans)
        return ended_spans

    def start_model_call(self, model: str, at: int | None = None) -> Span:
        """Start the span of a call of a model, with its id in the configuration."""
        self.model_calls += 1
        return self._start("model", f"{CALL_PREFIX}{self.model_calls}", model, at)

    def rename_model_call(self, requested_model: str, answering_model: str) -> None:
        """Name the latest open call of a model after the fallback that has answered it."""
        for span in reversed(self._spans):
            if span.kind == "model" and span.name == requested_model and span.finished_at is None:
                span.name = answering_model
                return

    def find_open_call(self, model: str) -> Span | None:
        """Return the only open call of a model; None if there is none, or more than one."""
        open_calls = [
            span
            for span in self._spans
            if span.kind == "model" and span.name == model and span.finished_at is None
        ]
        return open_calls[0] if len(open_calls) == 1 else None

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
        """Return the open tool call or step that started a member, if there is one."""
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

    def _restore(self, stored_spans: Iterable[Mapping[str, Any]]) -> None:
        for values in stored_spans:
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


Propagation = Literal["mcp", "models"]
"""The other systems that get the `traceparent` of their call."""

HEADER = "traceparent"

_current: ContextVar[LegTrace | None] = ContextVar("agentctl_trace", default=None)


class LegTrace:
    """The span of one leg of a run. It has no reference to the run.

    Args:
        parent: its parent; None for a root.
        link: the span that it links to; None without a link.
        propagates: the systems that get the `traceparent` of their call.

    Attributes:
        has_calls: True if the calls of the run have spans too.
        started_at: the start of the leg in microseconds UTC.
    """

    __slots__ = ("has_calls", "link", "own", "parent", "propagates", "started_at")

    def __init__(
        self, trace: RunTrace, propagates: tuple[Propagation, ...] = (), *, has_calls: bool = True
    ) -> None:
        cause = trace.cause
        is_child = cause is not None and cause.trace_id == trace.own.trace_id
        self.own = trace.own
        self.parent = cause if is_child else None
        self.link = None if is_child else cause
        self.propagates = propagates
        self.has_calls = has_calls
        self.started_at = now()

    def locate(self, span: Span | None) -> TraceContext:
        """Return the place of a call of the run, or of the run for None or without its calls."""
        if span is None or not self.has_calls or span.kind not in ("model", "tool"):
            return self.own
        parts = (span.kind, span.id, span.repetition)
        return self.own._replace(span_id=derive_span_id(self.own.span_id, *parts))

    def enter(self, span: Span | None = None) -> Token[Context]:
        """Set the current span of this task; return the token that undoes it."""
        from opentelemetry import context

        return context.attach(_build_context(self.locate(span)))

    def activate(self) -> None:
        """Make this the trace of the current task, for as long as the task lasts."""
        _current.set(self)
        self.enter()


def enter_span(span: Span | None) -> AbstractContextManager[None]:
    """Set the current span of OpenTelemetry to one of the current run, if it is traced."""
    leg = _current.get()
    return _NOTHING if leg is None or span is None else _enter_traced(leg, span)


_NOTHING = nullcontext()


@contextmanager
def _enter_traced(leg: LegTrace, span: Span) -> Iterator[None]:
    from opentelemetry import context

    token = leg.enter(span)
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def enter_call(spans: Spans, call: CurrentCall) -> Iterator[None]:
    """Set the current tool call."""
    token = current_call.set(call)
    try:
        with enter_span(None if _current.get() is None else spans.find_open(call.id)):
            yield
    finally:
        current_call.reset(token)


def find_traceparent(target: Propagation) -> str | None:
    """Return the `traceparent` for a request to another system; None if it gets none."""
    leg = _current.get()
    if leg is None or target not in leg.propagates:
        return None
    return (find_current_span() or leg.own).traceparent


@contextmanager
def hide_trace(target: Propagation) -> Iterator[None]:
    """Keep a library from passing the trace on to a system that gets none."""
    leg = _current.get()
    if leg is None or target in leg.propagates:
        yield
        return
    from opentelemetry import context

    token = context.attach(context.Context())
    try:
        yield
    finally:
        context.detach(token)


def find_current_span() -> TraceContext | None:
    """Return the current span of OpenTelemetry, which may be a span of a library, or None."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None

    sampled = bool(context.trace_flags & trace.TraceFlags.SAMPLED)
    return TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled)


def _build_context(place: TraceContext) -> Any:
    from opentelemetry import trace

    return trace.set_span_in_context(trace.NonRecordingSpan(build_span_context(place)))


def build_span_context(place: TraceContext, *, is_remote: bool = False) -> Any:
    """Return a place in the form of OpenTelemetry."""
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if place.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(place.trace_id, 16), int(place.span_id, 16), is_remote, flags)
