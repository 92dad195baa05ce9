"""The trace of the current run, as the current span of OpenTelemetry.

Spans that a library or a tool creates nest below the span of the run, of the tool call or of the
model call that executes. The spans of the server itself are built when a leg has ended, from what
the transcript has recorded (docs/decisions/0053): nothing here is called for a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Literal

from agentctl.records.times import now
from agentctl.records.trace_context import RunTrace, TraceContext, derive_span_id
from agentctl.runtime.transcript.spans import Span, Spans
from agentctl.work.run_scope import CurrentCall, current_call

if TYPE_CHECKING:
    from opentelemetry.context import Context

Propagation = Literal["mcp", "models"]
"""The other systems that get the `traceparent` of their call."""

HEADER = "traceparent"

_current: ContextVar[LegTrace | None] = ContextVar("agentctl_trace", default=None)


class LegTrace:
    """The span of one leg of a run. It has no reference to the run.

    Args:
        parent: its parent; None for a root.
        link: the span that it links to; None for none.
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
        """Return the place of a call of the run; that of the run for None or without its calls."""
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


@contextmanager
def enter_span(span: Span | None) -> Iterator[None]:
    """Set the current span of OpenTelemetry to one of the current run, if it is traced."""
    leg = _current.get()
    if leg is None or span is None:
        yield
        return
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
    """Return the current span of OpenTelemetry, which may be one of a library; None for none."""
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    sampled = bool(found.trace_flags & trace.TraceFlags.SAMPLED)
    return TraceContext(f"{found.trace_id:032x}", f"{found.span_id:016x}", sampled)


def _build_context(place: TraceContext) -> Any:
    from opentelemetry import trace

    return trace.set_span_in_context(trace.NonRecordingSpan(build_span_context(place)))


def build_span_context(place: TraceContext, *, is_remote: bool = False) -> Any:
    """Return a place in the form of OpenTelemetry."""
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if place.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(place.trace_id, 16), int(place.span_id, 16), is_remote, flags)
