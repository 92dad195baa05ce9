"""A collector: an OTLP/HTTP receiver in a thread of the test, which keeps what it receives."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.kit.conditions import wait_for


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector has received it; times are nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    scope: str

    @property
    def run_id(self) -> str:
        return str(self.attributes.get("agentctl.run.id", ""))


@dataclass
class Collector:
    """A running collector.

    Attributes:
        url: its base URL.
        bodies: the bodies of all requests.
    """

    url: str
    bodies: list[bytes] = field(default_factory=list)
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)

    def wait_for(self, is_complete: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
        """Wait until the spans so far are complete, and return them."""
        names = lambda: [span.name for span in self.spans]  # noqa: E731
        wait_for(lambda: is_complete(list(self.spans)), problem=names)
        return list(self.spans)

    def wait_for_names(self, *names: str) -> list[ReceivedSpan]:
        """Wait until at least these spans have arrived, and return all."""
        wanted = Counter(names)
        return self.wait_for(lambda spans: wanted <= Counter(span.name for span in spans))

    def take(self, body: bytes, path: str) -> None:
        self.bodies.append(body)
        if path == "/v1/metrics":
            self.metrics += [
                metric
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            ]
            return
        self.spans += [
            ReceivedSpan(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.kind,
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                span.status.code,
                {item.key: _read(item.value) for item in span.attributes},
                [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                scope.scope.name,
            )
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def _read(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_read(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextlib.contextmanager
def run_collector(*, status: int = 200) -> Iterator[Collector]:
    """Receive while the block lasts; answer with a status."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write no log."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status == 200:
                collector.take(body, self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
