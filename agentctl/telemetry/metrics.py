"""Metrics of model calls by OTLP (`tracing.metrics`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from agentctl import __version__
from agentctl.runtime.models.attempts import TokenType, list_tokens
from agentctl.telemetry import attributes as names

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.runtime.transcript.spans import Span

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
"""The bounds of the histograms that the conventions ask for."""


_KINDS: tuple[TokenType, ...] = ("input", "output")


class ModelMetrics:
    """The histograms of the model calls of this process.

    Args:
        endpoint: the URL of the collector for metrics; None for that of the variables of the SDK.
        resource: the attributes of the server.
    """

    def __init__(self, settings: Settings, endpoint: str | None, resource: Resource) -> None:
        self._models = names.list_models(settings.models)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint))
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("agentctl", __version__)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKENS,
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            unit="s",
            description="Time to receive the first chunk.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )

    def record(self, call: Span) -> None:
        """Record a model call that has ended."""
        known = self._models.get(call.name)
        labels = {names.OPERATION: "chat", names.REQUEST_MODEL: known.name if known else call.name}
        if known is not None:
            labels[names.PROVIDER] = known.provider
        if call.first_token_at is not None:
            self._first.record(max(call.first_token_at - call.started_at, 0) / 1_000_000, labels)
        tokens = list_tokens(call)
        for kind in _KINDS:
            if count := tokens.get(kind):
                self._tokens.record(count, {**labels, names.TOKEN_TYPE: kind})
        if call.status == "failed":
            labels[names.ERROR_TYPE] = call.error_code or names.OTHER_ERROR
        self._seconds.record(((call.finished_at or 0) - call.started_at) / 1_000_000, labels)

    def shutdown(self, seconds: float) -> None:
        """Export the last values, and end the thread."""
        self._provider.shutdown(timeout_millis=seconds * 1_000)
