"""The spans of a leg in the form of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from agentctl import __version__
from agentctl.light_dataclass import dataclass
from agentctl.records.trace_context import TraceContext
from agentctl.runtime.tracing import LegTrace, build_span_context
from agentctl.telemetry import attributes as names

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.runs.states import LegEnd
    from agentctl.runtime.transcript.spans import Span
    from agentctl.runtime.transcript.transcript import Transcript

_SCOPE = InstrumentationScope("agentctl", __version__)
_UNSET, _FAILED = Status(StatusCode.UNSET), Status(StatusCode.ERROR)

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EndedLeg:
    """A leg that has ended, as its spans show it.

    Attributes:
        trace: its place.
        model: the id of the model of its component; empty without one.
        calls: its parts that have ended.
        is_recovered: True if another process than that of the leg has ended it.
    """

    trace: LegTrace
    run_id: str
    session_id: str
    user_id: str | None
    input: str
    purpose: str | None
    is_root: bool
    attempt: int
    kind: str
    component_id: str
    component_name: str
    model: str
    ending: LegEnd
    finished_at: int
    transcript: Transcript
    calls: Sequence[Span]
    is_recovered: bool = False


class SpanBuilder:
    """Builds the spans of runs: one for each leg, each model call and each tool call.

    A member has the span of the run that executes it, and so has a step of a workflow.

    Args:
        resource: the attributes of the server.
    """

    def __init__(self, settings: Settings, resource: Resource) -> None:
        self._has_content = settings.tracing.content
        self._models = names.list_models(settings.models)
        self._resource = resource

    def build(self, leg: EndedLeg) -> Iterator[ReadableSpan]:
        """Yield the spans of a leg, that of the run last."""
        if leg.trace.has_calls:
            for call in leg.calls:
                if call.kind == "model":
                    yield self._build_model_call(leg, call)
                elif call.kind == "tool":
                    yield self._build_tool_call(leg, call)
        yield self._build_run(leg)

    def _build_run(self, leg: EndedLeg) -> ReadableSpan:
        trace, ending = leg.trace, leg.ending
        operation = "invoke_workflow" if leg.kind == "workflow" else "invoke_agent"
        found: Attributes = {
            names.OPERATION: operation,
            names.AGENT_ID: leg.component_id,
            names.AGENT_NAME: leg.component_name,
            names.CONVERSATION: leg.session_id,
            names.RUN_ID: leg.run_id,
            names.RUN_STATUS: ending.status.lower(),
            names.RUN_LEG: leg.attempt,
            **names.describe_usage(leg.transcript.metrics),
        }
        if (model := self._models.get(leg.model)) is not None:
            found |= {names.PROVIDER: model.provider, names.REQUEST_MODEL: model.name}
        if leg.purpose is not None:
            found[names.RUN_PURPOSE] = leg.purpose
        if leg.is_recovered:
            found[names.RUN_RECOVERED] = True
        status = _UNSET
        if ending.status == "ERROR":
            found[names.ERROR_TYPE], status = ending.error_code or names.OTHER_ERROR, _FAILED
        elif ending.status == "CANCELLED":
            found |= {names.ERROR_TYPE: names.CANCELLED, names.CANCEL_REQUESTED: True}
        if self._has_content:
            found[names.INPUT_MESSAGES] = names.dump_messages("user", leg.input)
            found[names.OUTPUT_MESSAGES] = names.dump_messages("assistant", leg.transcript.content)
            found |= {names.USER_ID: leg.user_id} if leg.user_id is not None else {}
        return ReadableSpan(
            f"{operation} {leg.component_id}",
            build_span_context(trace.own),
            _find_parent(trace.parent),
            self._resource,
            found,
            links=[Link(build_span_context(trace.link, is_remote=True))] if trace.link else (),
            kind=SpanKind.SERVER if leg.is_root else SpanKind.INTERNAL,
            status=status,
            start_time=trace.started_at * 1_000,
            end_time=max(leg.finished_at, trace.started_at) * 1_000,
            instrumentation_scope=_SCOPE,
        )

    def _build_model_call(self, leg: EndedLeg, call: Span) -> ReadableSpan:
        known = self._models.get(call.name)
        name = call.name if known is None else known.name
        found: Attributes = {names.OPERATION: "chat", names.REQUEST_MODEL: name}
        if known is not None:
            found |= {names.PROVIDER: known.provider, names.MODEL_ID: call.name}
        answer: Mapping[str, Any] = call.answer or {}
        counters = {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
        found |= names.describe_usage({**counters, **answer.get("metrics", {})})
        if (reason := answer.get("finish_reason")) is not None:
            found[names.FINISH_REASONS] = [reason]
        if call.first_token_at is not None:
            found[names.FIRST_CHUNK] = max(call.first_token_at - call.started_at, 0) / 1_000_000
        if self._has_content and "content" in answer:
            text, calls = answer["content"], answer.get("tool_calls", ())
            found[names.OUTPUT_MESSAGES] = names.dump_messages("assistant", text, calls)
        code = call.error_code or names.OTHER_ERROR
        return self._build_call(leg, call, f"chat {name}", SpanKind.CLIENT, found, code)

    def _build_tool_call(self, leg: EndedLeg, call: Span) -> ReadableSpan:
        found: Attributes = {
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: call.name,
            names.TOOL_CALL_ID: call.id,
            names.TOOL_TYPE: "function",
        }
        if self._has_content:
            entries = (tool for tool in leg.transcript.tools if tool["tool_call_id"] == call.id)
            for entry in entries:
                found[names.TOOL_ARGUMENTS] = names.dump_content(entry["tool_args"])
                found[names.TOOL_RESULT] = names.cut(entry["result"] or "")
        title = f"execute_tool {call.name}"
        return self._build_call(leg, call, title, SpanKind.INTERNAL, found, "TOOL_FAILED")

    def _build_call(
        self,
        leg: EndedLeg,
        call: Span,
        title: str,
        kind: SpanKind,
        found: Attributes,
        error_code: str,
    ) -> ReadableSpan:
        trace = leg.trace
        found |= {names.CONVERSATION: leg.session_id, names.RUN_ID: leg.run_id}
        if call.status != "completed":
            found[names.ERROR_TYPE] = error_code if call.status == "failed" else names.CANCELLED
        # A call that waited for a person has begun in an earlier leg.
        started_at = max(call.started_at, trace.started_at)
        return ReadableSpan(
            title,
            build_span_context(trace.locate(call)),
            build_span_context(trace.own),
            self._resource,
            found,
            kind=kind,
            status=_FAILED if call.status == "failed" else _UNSET,
            start_time=started_at * 1_000,
            end_time=max(call.finished_at or 0, started_at) * 1_000,
            instrumentation_scope=_SCOPE,
        )


def _find_parent(place: TraceContext | None) -> Any:
    return None if place is None else build_span_context(place, is_remote=True)
