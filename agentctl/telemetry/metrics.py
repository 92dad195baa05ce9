"""The metrics of a server for Prometheus. Imported only if they are configured.

Nothing is counted here: the parts of the server have their own counters, which are read for each
response. No label has values that callers choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from agentctl import __version__
from agentctl.records.approvals import ApprovalStatus
from agentctl.records.kinds import KINDS
from agentctl.records.runs import FinalStatus
from agentctl.records.times import DurationHistogram, now
from agentctl.runs.engine.engine import Engine
from agentctl.runs.jobs.lanes import Jobs
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.runtime.mcp.calls import CALL_ENDS
from agentctl.runtime.mcp.servers import McpServers
from agentctl.store.database import Database
from agentctl.telemetry.measurements import LoopLag, RequestCounters
from agentctl.webhooks.deliveries import DeliveryCounters

PREFIX = "agentctl"

_REQUEST_LABELS = ("operation", "method", "status")

Labels = tuple[str, ...]
"""The values of the labels of a sample, in the order of their names."""

Numbers = Iterable[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The metrics of one process."""

    requests: RequestCounters
    lag: LoopLag
    engine: Engine

    observer: WorkerMonitor
    """Has read the heartbeats of all processes, if this process sweeps."""

    opened: Callable[[], Mapping[str, Database]]
    """Returns the open databases by id."""

    mcp: McpServers
    webhooks: DeliveryCounters
    jobs: Jobs

    def render(self, worker: int) -> str:
        """Return all metrics in Prometheus's text format 0.0.4.

        Args:
            worker: number of this process in the server, from 0: a label of every sample.
        """
        return generate_latest(_LabelledCollector(self, {"worker": str(worker)})).decode()

    def families(self) -> Iterator[Metric]:
        """Yield all metric families, without the label `worker`."""
        yield _build_gauge("info", "Version of the server.", ("version",), [((__version__,), 1)])
        yield from self._request_metrics()
        yield from self._run_metrics()
        yield from self._database_metrics()
        yield from self._mcp_metrics()
        yield from self._webhook_metrics()

        text = "Time of the jobs of this process; some run in the process that sweeps only."
        yield _build_histogram("job_seconds", text, ("job", "end"), self.jobs.times.items())

        text = "Sampled delay of the event loop."
        yield _build_histogram("loop_lag_seconds", text, (), [((), self.lag.samples)])

        yield from ProcessCollector(namespace=PREFIX, registry=None).collect()

    def _request_metrics(self) -> Iterator[Metric]:
        durations = list(self.requests.by_kind())

        counts = [(tuple(kind), histogram.count) for kind, histogram in durations]
        text = "Finished requests, including those whose client disconnected."
        yield _build_counter("requests", text, _REQUEST_LABELS, counts)

        text = "Time from the header of a request to the end of its response."
        yield _build_histogram("request_seconds", text, _REQUEST_LABELS, durations)

    def _run_metrics(self) -> Iterator[Metric]:
        counters = self.engine.counters

        # Zeros are included, because a rate needs the first value too.
        started = [((kind,), counters.started[kind]) for kind in KINDS]
        yield _build_counter("runs_started", "Runs that were started.", ("kind",), started)

        ended = [
            ((kind, status.lower()), counters.finished[kind, status])
            for kind in KINDS
            for status in get_args(FinalStatus)
        ]
        text = "Runs with a stored final status."
        yield _build_counter("runs_ended", text, ("kind", "status"), ended)

        yield from self._live_metrics()
        yield from self._approval_metrics()
        yield from self._model_metrics()

        text = "Rows that were deleted for their age, by their kind."
        deleted = [((kind,), float(count)) for kind, count in counters.deleted.items()]
        yield _build_counter("rows_expired", text, ("kind",), deleted)

        text = "Time from the request of a cancel to the stored final status."
        yield _build_histogram("cancel_seconds", text, (), [((), counters.cancel_seconds)])

    def _live_metrics(self) -> Iterator[Metric]:
        kinds = Counter(run.spec.component_type for run in self.engine.live_runs())
        live = [((kind,), kinds[kind]) for kind in KINDS]
        yield _build_gauge("runs_live", "Live runs of this process.", ("kind",), live)

        members = sum(run.parent is not None for run in self.engine.live_runs())
        text = "Live runs of members and steps of this process."
        yield _build_gauge("members_live", text, (), [((), members)])

        text = "Members of teams that wait for a slot ."
        yield _build_gauge("members_waiting", text, (), [((), self.engine.waiting_members)])

    def _model_metrics(self) -> Iterator[Metric]:
        models = self.engine.model_counters

        text = "Repetitions of model calls after temporary failures."
        retries = [((model,), count) for model, count in models.retries.items()]
        yield _build_counter("model_retries", text, ("model",), retries)

        text = "Model calls that were passed to the fallback of a model."
        passed = [((model,), count) for model, count in models.fallbacks.items()]
        yield _build_counter("model_fallbacks", text, ("model",), passed)

        calls = models.calls
        times = [((model,), counters.seconds) for model, counters in calls.items()]
        text = "Time of model calls, each attempt for itself."
        yield _build_histogram("model_seconds", text, ("model",), times)

        times = [((model,), counters.first_token_seconds) for model, counters in calls.items()]
        text = "Time from the start of a model call to the first part of its answer."
        yield _build_histogram("model_first_token_seconds", text, ("model",), times)

        tokens = [
            ((model, kind), float(count))
            for model, counters in calls.items()
            for kind, count in counters.tokens.items()
        ]
        text = "Tokens that providers have reported; those of a cache are also input."
        yield _build_counter("tokens", text, ("model", "type"), tokens)

        tracer = self.engine.tracer
        if tracer is not None:
            text = "Spans that were not exported, because the collector does not accept them."
            yield _build_counter("spans_dropped", text, (), [((), float(tracer.dropped))])

    def _approval_metrics(self) -> Iterator[Metric]:
        counters = self.engine.counters
        for name, field, text in (
            ("runs_queued", "queued", "Runs that wait in the queue."),
            ("runs_paused", "paused", "Root runs that wait for a decision."),
            ("approvals_pending", "pending", "Approvals that no one has decided yet."),
        ):
            counts = [((db,), getattr(count, field)) for db, count in counters.waiting.items()]
            yield _build_gauge(name, text, ("database",), counts)

        unknown = [((db,), float(count.unknown)) for db, count in counters.waiting.items()]
        text = "Approved calls of which no one knew whether they were made."
        yield _build_counter("approvals_unknown", text, ("database",), unknown)

        # A cancelled approval has no decision: its run has ended.
        decided = [
            ((status,), counters.decided[status])
            for status in get_args(ApprovalStatus)
            if status not in ("pending", "cancelled")
        ]
        text = "Decisions about approvals."
        yield _build_counter("approvals_decided", text, ("decision",), decided)

        text = "Time that runs waited in the queue before they began."
        yield _build_histogram("queue_wait_seconds", text, (), [((), counters.queue_seconds)])
        text = "Time from the pause of a run to a decision."
        yield _build_histogram("approval_wait_seconds", text, (), [((), counters.wait_seconds)])

    def _webhook_metrics(self) -> Iterator[Metric]:
        counters = self.webhooks
        for name, counted, text in (
            ("delivered", counters.delivered, "Events that an endpoint has accepted."),
            ("failed", counters.failed, "Attempts that an endpoint has not accepted."),
            ("dead", counters.dead, "Events whose last attempt has failed."),
        ):
            counts = [((webhook,), float(count)) for webhook, count in counted.items()]
            yield _build_counter(f"webhooks_{name}", text, ("webhook",), counts)

        waiting = counters.waiting.items()
        numbers = [((webhook,), float(row.count)) for webhook, row in waiting]
        text = "Events that wait for their next attempt, in the database."
        yield _build_gauge("webhooks_waiting", text, ("webhook",), numbers)

        at = now()
        ages = [
            ((webhook,), max(at - (row.oldest_at or at), 0) / 1_000_000) for webhook, row in waiting
        ]
        text = "Age of the oldest event that waits."
        yield _build_gauge("webhooks_oldest_age_seconds", text, ("webhook",), ages)

    def _mcp_metrics(self) -> Iterator[Metric]:
        servers = self.mcp.hosted
        states = [((name,), float(server.state == "connected")) for name, server in servers.items()]
        text = "1 if the MCP server is connected, else 0."
        yield _build_gauge("mcp_connected", text, ("server",), states)

        counters_by_server = {name: server.counters for name, server in servers.items()}

        text = "Opened connections to MCP servers."
        opened = [
            ((name,), float(counters.connections)) for name, counters in counters_by_server.items()
        ]
        yield _build_counter("mcp_connections", text, ("server",), opened)

        text = "Failed attempts to connect to MCP servers, and lost connections."
        failed = [
            ((name,), float(counters.failures)) for name, counters in counters_by_server.items()
        ]
        yield _build_counter("mcp_failures", text, ("server",), failed)

        ends = [
            ((name, end), float(counters.calls[end]))
            for name, counters in counters_by_server.items()
            for end in CALL_ENDS
        ]
        yield _build_counter("mcp_calls", "Ended calls of MCP tools.", ("server", "end"), ends)

        text = "Time of calls of MCP tools."
        times = [((name,), counters.call_seconds) for name, counters in counters_by_server.items()]
        yield _build_histogram("mcp_call_seconds", text, ("server",), times)

    def _database_metrics(self) -> Iterator[Metric]:
        loads = {name: database.load() for name, database in self.opened().items()}

        for field, text in (
            ("waiting", "Units of work that wait for a connection or for the writer."),
            ("in_use", "Connections in use."),
            ("size", "Maximum number of connections."),
        ):
            values = [((name, load.kind), getattr(load, field)) for name, load in loads.items()]
            yield _build_gauge(f"database_{field}", text, ("database", "kind"), values)

        notified = [
            ((name,), float(load.is_notified))
            for name, load in loads.items()
            if load.is_notified is not None
        ]
        text = "1 if notifications of other servers arrive, 0 if this process has to poll."
        yield _build_gauge("database_notified", text, ("database",), notified)

        oldest = self.observer.oldest_heartbeat if self.jobs.lease.is_held else None
        ages = [] if oldest is None else [((), max(now() - oldest, 0) / 1_000_000)]
        text = "Age of the oldest heartbeat of all processes; only the one that sweeps has it."
        yield _build_gauge("oldest_beat_age_seconds", text, (), ages)


@dataclass(frozen=True, slots=True)
class _LabelledCollector(Collector):
    """A collector that adds labels to each sample."""

    metrics: ServerMetrics
    labels: Mapping[str, str]

    def collect(self) -> Iterator[Metric]:
        for family in self.metrics.families():
            family.samples = [
                sample._replace(labels={**self.labels, **sample.labels})
                for sample in family.samples
            ]
            yield family


def _build_gauge(name: str, text: str, labels: Labels, values: Numbers) -> Metric:
    return _add_values(GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels), values)


def _build_counter(name: str, text: str, labels: Labels, values: Numbers) -> Metric:
    return _add_values(CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels), values)


def _add_values(family: GaugeMetricFamily | CounterMetricFamily, values: Numbers) -> Metric:
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _build_histogram(
    name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, DurationHistogram]]
) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for label_values, histogram in values:
        buckets = [
            ("+Inf" if bound == float("inf") else str(bound), float(count))
            for bound, count in histogram.cumulative_counts()
        ]
        family.add_metric(label_values, buckets, histogram.total)
    return family
