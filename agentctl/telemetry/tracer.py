"""The tracer of a service: the places of runs in traces, and the export of their spans.

A thread exports the spans in batches, so no run waits for the collector. Its queue is bounded:
while the collector does not respond, further spans are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from agentctl import __version__
from agentctl.config.settings import Settings
from agentctl.records import logs
from agentctl.records.logs import RateLimitedLog
from agentctl.records.run_spec import RunSpec
from agentctl.records.times import now
from agentctl.runs.desk.end import EndedRun
from agentctl.runs.life.live import LiveRun
from agentctl.runs.states import LegEnd
from agentctl.runtime.tracing import LegTrace, Span, find_current_span
from agentctl.telemetry.spans import EndedLeg, ModelMetrics, SpanBuilder

QUEUE_VARIABLE = "OTEL_BSP_MAX_QUEUE_SIZE"
QUEUE_SIZE = 2_048
"""Maximum number of spans that wait, unless the variable has another number."""

FLUSH_SECONDS = 2.0
"""Maximum time that the end of a process waits for the collector."""

_LIBRARIES_WITHOUT_SPANS = ("mcp-python-sdk",)
"""Libraries that the server itself uses: their spans would repeat the spans of tool calls."""

_EXPORTERS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)

_log = logging.getLogger("agentctl.telemetry")
_rate_limited = RateLimitedLog(_log)


class SpanQueue(SpanProcessor):
    """A bounded queue of spans, and the thread that exports them.

    Args:
        exporter: sends a batch to the collector.

    Attributes:
        dropped: number of spans that were not exported.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.dropped = 0
        self._size = _read_queue_size()
        self._waiting = 0
        self._lock = threading.Lock()
        self._exporter = exporter
        self._batches = BatchSpanProcessor(_CountingExporter(self), max_queue_size=self._size)

    def on_end(self, span: ReadableSpan) -> None:
        """Add a span that is sampled; drop it if the queue is full. Never waits."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        with self._lock:
            is_full = self._waiting >= self._size
            if is_full:
                self.dropped += 1
            else:
                self._waiting += 1

        if is_full:
            _rate_limited.log("spans are dropped: the collector of traces is too slow or away")
        else:
            self._batches.on_end(span)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch, in the thread of the queue."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            has_failed = result is not SpanExportResult.SUCCESS
            with self._lock:
                self._waiting -= len(spans)
                if has_failed:
                    self.dropped += len(spans)
            if has_failed:
                _rate_limited.log("spans are dropped: the collector of traces refused them")
        return result

    def shutdown(self) -> None:
        """Export what waits, and end the thread. May take as long as the exporter tries."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what waits now."""
        return self._batches.force_flush(timeout_millis)

    def close_exporter(self) -> None:
        """Close the connections to the collector."""
        self._exporter.shutdown()


class _CountingExporter(SpanExporter):
    def __init__(self, queue: SpanQueue) -> None:
        self._queue = queue

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._queue.export(spans)

    def shutdown(self) -> None:
        self._queue.close_exporter()


def _read_queue_size() -> int:
    text = os.environ.get(QUEUE_VARIABLE, "")
    if not text.isdecimal() or int(text) == 0:
        return QUEUE_SIZE
    return int(text)


class _Provider(TracerProvider):
    """The provider for the spans of libraries and of the code of users."""

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **options: Any) -> api.Tracer:
        if instrumenting_module_name in _LIBRARIES_WITHOUT_SPANS:
            return api.NoOpTracer()
        return super().get_tracer(instrumenting_module_name, *args, **options)


class OtlpTracer:
    """Gives runs their place in a trace, and exports spans by OTLP
    (`runs.life.tracing.RunTracer`)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.tracing
        self._runs_only = {agent.id for agent in settings.agents if agent.trace == "run"}

        # The exporters write several lines for each batch that the collector does not take.
        for name in _EXPORTERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)

        resource = _build_resource(settings)
        base = self._settings.endpoint.rstrip("/")
        self._queue = SpanQueue(OTLPSpanExporter(endpoint=f"{base}/v1/traces" if base else None))
        self._builder = SpanBuilder(settings, resource)

        self._metrics: ModelMetrics | None = None
        if self._settings.metrics:
            endpoint = f"{base}/v1/metrics" if base else None
            self._metrics = ModelMetrics(settings, endpoint, resource)

        sampler = ParentBased(TraceIdRatioBased(self._settings.sample))
        self._provider = _Provider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._queue)

    @property
    def dropped(self) -> int:
        """Number of spans that were not exported."""
        return self._queue.dropped

    def install(self) -> None:
        """Export the spans of libraries and of the code of agents, which is imported already.

        If this code has its own provider, that provider keeps their spans. They nest in the spans
        of the server all the same.
        """
        if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            api.set_tracer_provider(self._provider)
        else:
            _log.warning(
                "the code of agents has its own tracer provider, which exports the spans of"
                " libraries; the spans of runs go to the collector of [tracing]"
            )

    def place(self, spec: RunSpec, cause: logs.TraceContext | None = None) -> RunSpec:
        return replace(spec, trace=self._place(spec, cause).text)

    def _place(self, spec: RunSpec, cause: logs.TraceContext | None) -> logs.RunTrace:
        sample = self._settings.sample
        if cause is not None:
            trace = logs.build_run_trace(spec.run_id, cause, sample=sample)
            return trace._replace(own=trace.own._replace(is_sampled=cause.is_sampled))

        # The span of an instrumented host application, or of a request of MCP.
        caller = find_current_span() or logs.caller_trace.get()
        if caller is None or self._settings.parent == "ignore":
            return logs.build_run_trace(spec.run_id, None, sample=sample)
        if self._settings.parent == "link" or spec.purpose is not None:
            return logs.build_run_trace(spec.run_id, caller, sample=sample)
        return logs.build_child_trace(spec.run_id, caller)

    def begin_leg(self, run: LiveRun) -> LegTrace | None:
        first = logs.parse_run_trace(run.spec.trace)
        if first is None:
            return None

        if run.attempt == 1:
            trace = first
        elif run.parent is None or run.parent.trace is None:
            trace = logs.build_leg_trace(run.run_id, run.attempt, first.own)
        else:
            spans = run.parent.transcript.spans
            span = spans.find_open(run.run_id)
            place = run.parent.trace.locate(None if span is None else spans.find_parent(span))
            own = logs.build_leg_trace(run.run_id, run.attempt, first.own).own
            trace = logs.RunTrace(own._replace(trace_id=place.trace_id), place)

        has_calls = run.component.kind != "agent" or run.component.id not in self._runs_only
        return LegTrace(trace, self._settings.propagate, has_calls=has_calls)

    def end_leg(self, run: LiveRun, ending: LegEnd, calls: Sequence[Span]) -> None:
        try:
            if self._metrics is not None:
                for call in calls:
                    if call.kind == "model":
                        self._metrics.record(call)
            if run.trace is not None and run.trace.own.is_sampled:
                self._export(_describe_leg(run, run.trace, ending, calls))
        except Exception as error:
            _rate_limited.log("spans of runs could not be built", cause=error)

    def end_lost(self, lost: EndedRun) -> None:
        try:
            first = logs.parse_run_trace(lost.run.trace)
            if first is not None and first.own.is_sampled:
                self._export(_describe_lost(lost, first))
        except Exception as error:
            _rate_limited.log("spans of lost runs could not be built", cause=error)

    def _export(self, leg: EndedLeg) -> None:
        for span in self._builder.build(leg):
            self._queue.on_end(span)

    async def close(self) -> None:
        """Export what waits, for at most `FLUSH_SECONDS`."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def report() -> None:
            if not done.done():
                done.set_result(None)

        def shut_down() -> None:
            with suppress(Exception):
                self._provider.shutdown()
            with suppress(Exception):
                if self._metrics is not None:
                    self._metrics.shutdown(FLUSH_SECONDS)
            with suppress(RuntimeError):  # The event loop was closed meanwhile.
                loop.call_soon_threadsafe(report)

        # A thread that the end of the process does not wait for.
        threading.Thread(target=shut_down, name="agentctl-telemetry", daemon=True).start()
        await asyncio.wait({done}, timeout=FLUSH_SECONDS)
        if not done.done():
            _log.warning("the collector of traces did not take the last spans in time")


def _describe_leg(run: LiveRun, trace: LegTrace, ending: LegEnd, calls: Sequence[Span]) -> EndedLeg:
    spec = run.spec
    component = run.component
    return EndedLeg(
        trace,
        run_id=run.run_id,
        session_id=spec.session_id,
        user_id=spec.user_id,
        input=spec.input,
        purpose=spec.purpose,
        is_root=run.parent is None,
        attempt=run.attempt,
        kind=component.kind,
        component_id=component.id,
        component_name=component.name,
        model=getattr(component.spec, "model", ""),
        ending=ending,
        finished_at=run.finished_at or now(),
        transcript=run.transcript,
        calls=calls,
    )


def _describe_lost(lost: EndedRun, first: logs.RunTrace) -> EndedLeg:
    run = lost.run
    transcript = lost.transcript
    leg_trace = first
    if run.attempt > 1:
        leg_trace = logs.build_leg_trace(run.run_id, run.attempt, first.own)
    trace = LegTrace(leg_trace)
    trace.started_at = run.started_at or run.created_at

    return EndedLeg(
        trace,
        run_id=run.run_id,
        session_id=run.session_id,
        user_id=run.user_id,
        input=run.input,
        purpose=run.purpose,
        is_root=run.parent_run_id is None or run.purpose is not None,
        attempt=run.attempt,
        kind=run.component_type,
        component_id=run.component_id,
        # The component may not be configured here: its name and its model are not known.
        component_name=run.component_id,
        model="",
        ending=lost.ending,
        finished_at=now(),
        transcript=transcript,
        calls=transcript.spans.take_ended(),
        is_recovered=True,
    )


def _build_resource(settings: Settings) -> Resource:
    resource = Resource.create({SERVICE_VERSION: __version__})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: settings.server.id}))
    return resource
