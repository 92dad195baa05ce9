"""The spans of a leg, and the metrics of model calls, in the form of OpenTelemetry.

The names and values follow the semantic conventions for GenAI; some are names of agentctl. The
conventions have the status Development: docs/traces.md names their version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from agentctl import __version__
from agentctl.config.providers import PROVIDERS, find_url
from agentctl.config.settings import Model, Settings
from agentctl.runs.states import LegEnd
from agentctl.runtime.models.attempts import TokenType, list_tokens
from agentctl.runtime.tracing import LegTrace, Span, build_span_context
from agentctl.runtime.transcript.transcript import Transcript

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
TOKEN_TYPE = "gen_ai.token.type"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
SPAN_KIND = "openinference.span.kind"
"""The kind of a span in Phoenix and Langfuse, which do not know the operation of a workflow."""

INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
USER_ID = "user.id"
"""Attributes that are exported with `tracing.content` only."""

RUN_ID = "agentctl.run.id"
RUN_STATUS = "agentctl.run.status"
RUN_LEG = "agentctl.run.leg"
RUN_RECOVERED = "agentctl.recovered"
RUN_PURPOSE = "agentctl.run.purpose"
CANCEL_REQUESTED = "agentctl.run.cancel_requested"
MODEL_ID = "agentctl.model.id"
MESSAGE_DELIVERED = "agentctl.message.delivered"
"""The event of a message that was sent to the run while it works."""

MESSAGE_ID = "agentctl.message.id"

OTHER_ERROR = "_OTHER"
CANCELLED = "cancelled"

USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
"""The attributes of the tokens of a model call, or of a run whose calls have not reported them."""

RUN_USAGE = {name: f"agentctl.usage.{name}" for name in USAGE}
"""The attributes of the sums of other runs: receivers add and price `gen_ai.usage` of all spans."""

CONTENT_CHARACTERS = 16_384
"""Characters after which a text of the content is cut."""

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
"""The bounds of the histograms that the conventions ask for."""

_KINDS: tuple[TokenType, ...] = ("input", "output")

_SCOPE = InstrumentationScope("agentctl", __version__)
_UNSET = Status(StatusCode.UNSET)
_FAILED = Status(StatusCode.ERROR)

Attributes = dict[str, Any]


class KnownModel(NamedTuple):
    """A model of the configuration in the terms of the conventions."""

    provider: str
    name: str

    server: Mapping[str, str | int]
    """The attributes of the address that it is called at, as far as it is known."""


def list_models(models: Iterable[Model]) -> Mapping[str, KnownModel]:
    """Return the models of the configuration by id."""
    known_models: dict[str, KnownModel] = {}
    for model in models:
        provider = PROVIDERS[model.provider].otel_name or model.provider
        known_models[model.id] = KnownModel(provider, model.model, _describe_server(model))
    return known_models


def _describe_server(model: Model) -> dict[str, str | int]:
    parts = urlsplit(find_url(model))
    if parts.hostname is None:
        return {}
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {SERVER_ADDRESS: parts.hostname, SERVER_PORT: port}


def describe_usage(
    counters: Mapping[str, int | None], attributes: Mapping[str, str] = USAGE
) -> dict[str, int]:
    """Return the attributes of the known token counters."""
    usage = {attribute: counters.get(name) for name, attribute in attributes.items()}
    return {attribute: count for attribute, count in usage.items() if count}


def dump_messages(role: str, text: str, calls: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return one message in the JSON form of the conventions."""
    parts: list[dict[str, Any]] = [{"type": "text", "content": cut(text)}] if text else []
    for call in calls:
        arguments = dump_content(call["arguments"])
        part = {"type": "tool_call", "id": call["id"], "name": call["name"]}
        parts.append({**part, "arguments": arguments})
    return orjson.dumps([{"role": role, "parts": parts}]).decode()


def dump_content(value: object) -> str:
    """Return a value as JSON text of bounded size."""
    return cut(orjson.dumps(value).decode())


def cut(text: str) -> str:
    return text if len(text) <= CONTENT_CHARACTERS else f"{text[:CONTENT_CHARACTERS]}…"


class ModelMetrics:
    """The histograms of model calls, sent to `endpoint` or to the default endpoint of the SDK."""

    def __init__(self, settings: Settings, endpoint: str | None, resource: Resource) -> None:
        self._models = list_models(settings.models)
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
        model = self._models.get(call.name)
        labels = {OPERATION: "chat", REQUEST_MODEL: model.name if model else call.name}
        if model is not None:
            labels[PROVIDER] = model.provider

        if call.first_token_at is not None:
            self._first.record(max(call.first_token_at - call.started_at, 0) / 1_000_000, labels)

        tokens = list_tokens(call)
        for kind in _KINDS:
            count = tokens.get(kind)
            if count:
                self._tokens.record(count, {**labels, TOKEN_TYPE: kind})

        if call.status == "failed":
            labels[ERROR_TYPE] = call.error_code or OTHER_ERROR
        self._seconds.record(((call.finished_at or 0) - call.started_at) / 1_000_000, labels)

    def shutdown(self, seconds: float) -> None:
        """Export the last values, and end the thread."""
        self._provider.shutdown(timeout_millis=seconds * 1_000)


@dataclass(frozen=True, slots=True)
class EndedLeg:
    """A leg that has ended, as its spans show it."""

    trace: LegTrace
    run_id: str
    session_id: str
    user_id: str | None
    input: str

    purpose: str | None
    """The purpose of background work; None for a run that a caller has started."""

    is_root: bool
    """False for the run of a member or a step."""

    attempt: int
    """Number of the leg in its run, from 1."""

    kind: str
    """Kind of the component."""

    component_id: str
    component_name: str

    model: str
    """The id of the model of its component; `""` without a model."""

    ending: LegEnd

    finished_at: int
    """In microseconds since 1970."""

    transcript: Transcript

    calls: Sequence[Span]
    """Its parts that have ended."""

    is_recovered: bool = False
    """True if the process of the leg has not ended it itself."""


class SpanBuilder:
    """Builds the spans of runs: one for each leg, model call and tool call.

    A member has the span of the run that executes it, and so has a step of a workflow.
    """

    def __init__(self, settings: Settings, resource: Resource) -> None:
        self._has_content = settings.tracing.content
        self._models = list_models(settings.models)
        self._resource = resource

    def build(self, leg: EndedLeg) -> Iterator[ReadableSpan]:
        """Yield the spans of a leg, the span of the run last."""
        if leg.trace.has_calls:
            for call in leg.calls:
                if call.kind == "model":
                    yield self._build_model_call(leg, call)
                elif call.kind == "tool":
                    yield self._build_tool_call(leg, call)
        yield self._build_run(leg)

    def _build_run(self, leg: EndedLeg) -> ReadableSpan:
        trace = leg.trace
        ending = leg.ending
        is_counted = any(call.kind == "model" and call.input_tokens for call in leg.calls)
        operation = "invoke_workflow" if leg.kind == "workflow" else "invoke_agent"
        attributes: Attributes = {
            OPERATION: operation,
            AGENT_ID: leg.component_id,
            AGENT_NAME: leg.component_name,
            CONVERSATION: leg.session_id,
            RUN_ID: leg.run_id,
            RUN_STATUS: ending.status.lower(),
            RUN_LEG: leg.attempt,
            **describe_usage(leg.transcript.metrics, RUN_USAGE if is_counted else USAGE),
        }

        if leg.kind == "workflow":
            attributes[SPAN_KIND] = "CHAIN"

        model = self._models.get(leg.model)
        if model is not None:
            attributes |= {PROVIDER: model.provider, REQUEST_MODEL: model.name}

        if leg.purpose is not None:
            attributes[RUN_PURPOSE] = leg.purpose
        if leg.is_recovered:
            attributes[RUN_RECOVERED] = True

        status = _UNSET
        if ending.status == "ERROR":
            attributes[ERROR_TYPE] = ending.error_code or OTHER_ERROR
            status = _FAILED
        elif ending.status == "CANCELLED":
            attributes |= {ERROR_TYPE: CANCELLED, CANCEL_REQUESTED: True}

        if self._has_content:
            attributes[INPUT_MESSAGES] = dump_messages("user", leg.input)
            attributes[OUTPUT_MESSAGES] = dump_messages("assistant", leg.transcript.content)
            if leg.user_id is not None:
                attributes[USER_ID] = leg.user_id

        return ReadableSpan(
            f"{operation} {leg.component_id}",
            build_span_context(trace.own),
            trace.parent and build_span_context(trace.parent, is_remote=True),
            self._resource,
            attributes,
            self._build_events(leg),
            links=[Link(build_span_context(trace.link, is_remote=True))] if trace.link else (),
            kind=SpanKind.SERVER if leg.is_root else SpanKind.INTERNAL,
            status=status,
            start_time=trace.started_at * 1_000,
            end_time=max(leg.finished_at, trace.started_at) * 1_000,
            instrumentation_scope=_SCOPE,
        )

    def _build_events(self, leg: EndedLeg) -> list[Event]:
        """Build an event for each message that was delivered in a leg."""
        events = list[Event]()
        started_at = leg.trace.started_at
        for message in leg.transcript.messages:
            # Messages have whole seconds. Earlier messages belong to an earlier leg or run.
            is_earlier = message["created_at"] < started_at // 1_000_000
            if "message_id" not in message or "origin_run_id" in message or is_earlier:
                continue

            attributes: Attributes = {MESSAGE_ID: message["message_id"]}
            if self._has_content:
                attributes[INPUT_MESSAGES] = dump_messages("user", message["content"])
            at = max(message["created_at"] * 1_000_000, started_at)
            events.append(Event(MESSAGE_DELIVERED, attributes, at * 1_000))
        return events

    def _build_model_call(self, leg: EndedLeg, call: Span) -> ReadableSpan:
        model = self._models.get(call.name)
        name = call.name if model is None else model.name
        attributes: Attributes = {OPERATION: "chat", REQUEST_MODEL: name}
        if model is not None:
            attributes |= {PROVIDER: model.provider, MODEL_ID: call.name, **model.server}

        answer: Mapping[str, Any] = call.answer or {}
        counters = {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
        attributes |= describe_usage({**counters, **answer.get("metrics", {})})

        reason = answer.get("finish_reason")
        if reason is not None:
            attributes[FINISH_REASONS] = [reason]

        response_attributes = {RESPONSE_MODEL: call.response_model, RESPONSE_ID: call.response_id}
        attributes |= {
            name: value for name, value in response_attributes.items() if value is not None
        }

        if call.first_token_at is not None:
            attributes[FIRST_CHUNK] = max(call.first_token_at - call.started_at, 0) / 1_000_000

        if self._has_content and "content" in answer:
            text = answer["content"]
            calls = answer.get("tool_calls", ())
            attributes[OUTPUT_MESSAGES] = dump_messages("assistant", text, calls)

        code = call.error_code or OTHER_ERROR
        return self._build_call(leg, call, f"chat {name}", SpanKind.CLIENT, attributes, code)

    def _build_tool_call(self, leg: EndedLeg, call: Span) -> ReadableSpan:
        attributes: Attributes = {
            OPERATION: "execute_tool",
            TOOL_NAME: call.name,
            TOOL_CALL_ID: call.id,
            TOOL_TYPE: "function",
        }
        if self._has_content:
            entries = (tool for tool in leg.transcript.tools if tool["tool_call_id"] == call.id)
            for entry in entries:
                attributes[TOOL_ARGUMENTS] = dump_content(entry["tool_args"])
                attributes[TOOL_RESULT] = cut(entry["result"] or "")

        title = f"execute_tool {call.name}"
        return self._build_call(leg, call, title, SpanKind.INTERNAL, attributes, "TOOL_FAILED")

    def _build_call(
        self,
        leg: EndedLeg,
        call: Span,
        title: str,
        kind: SpanKind,
        attributes: Attributes,
        error_code: str,
    ) -> ReadableSpan:
        trace = leg.trace
        attributes |= {CONVERSATION: leg.session_id, RUN_ID: leg.run_id}
        if call.status != "completed":
            attributes[ERROR_TYPE] = error_code if call.status == "failed" else CANCELLED

        # A call that waited for a person has begun in an earlier leg.
        started_at = max(call.started_at, trace.started_at)
        return ReadableSpan(
            title,
            build_span_context(trace.locate(call)),
            build_span_context(trace.own),
            self._resource,
            attributes,
            kind=kind,
            status=_FAILED if call.status == "failed" else _UNSET,
            start_time=started_at * 1_000,
            end_time=max(call.finished_at or 0, started_at) * 1_000,
            instrumentation_scope=_SCOPE,
        )
