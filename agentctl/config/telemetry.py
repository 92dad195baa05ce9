"""The tables `[log]`, `[metrics]` and `[tracing]` (docs/observability.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from agentctl.config.mcp_table import BaseUrl
from agentctl.config.names import ListenAddress

LogFormat = Literal["readable", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
TracedParts = Literal["calls", "run"]

TraceUrl = Annotated[
    str,
    Field(
        pattern=r"^(https?://[^\s/?#@]+/[^\s]*\{trace_id\}[^\s]*)?$",
        description=(
            'a URL with {trace_id}, such as "https://jaeger.example.org/trace/{trace_id}", or empty'
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class Log:
    """The table `[log]`: the format and the least level of log lines.

    At `info` the log has a line for each request.
    """

    format: LogFormat = "readable"
    level: LogLevel = "warning"


@dataclass(frozen=True, slots=True)
class Metrics:
    """The table `[metrics]`: the address for Prometheus, which needs no token; empty for none."""

    listen: ListenAddress = ""

    allow_remote: bool = False
    """True if `listen` may be an address that other machines can reach."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """The table `[tracing]`: export of traces with OpenTelemetry (docs/traces.md)."""

    enabled: bool = False

    endpoint: BaseUrl = ""
    """The base URL of the collector; empty for OTEL_EXPORTER_OTLP_ENDPOINT."""

    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The part of the runs without a parent whose spans are exported."""

    parent: Literal["trust", "link", "ignore"] = "trust"
    """The use of the `traceparent` of a caller.

    The span of the caller is the parent, or the target of a link, or it is ignored.
    """

    propagate: tuple[Literal["mcp", "models"], ...] = ("mcp",)
    """The systems that get the `traceparent` of their call."""

    content: bool = False
    """True adds messages, arguments, results and users to the spans."""

    metrics: bool = False
    """True exports metrics of model calls too."""

    url: TraceUrl = ""
    """The page about a trace, with `{trace_id}`; empty for no links."""
