"""The queue of spans for the collector.

A thread exports them in batches, so no run waits for the collector. The queue is bounded: while the
collector does not respond, further spans are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agentctl.records.rate_limited_log import RateLimitedLog

QUEUE_VARIABLE = "OTEL_BSP_MAX_QUEUE_SIZE"
QUEUE_SIZE = 2_048
"""Maximum number of spans that wait, unless the variable has another one."""

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.telemetry"))


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
            self._waiting += not is_full
            self.dropped += is_full
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
            failed = result is not SpanExportResult.SUCCESS
            with self._lock:
                self._waiting -= len(spans)
                self.dropped += len(spans) if failed else 0
            if failed:
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
    return int(text) if text.isdecimal() and int(text) > 0 else QUEUE_SIZE
