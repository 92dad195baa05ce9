"""Reports what an agent of openai-agents does: its answers, tool calls, tokens and result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from agents import Agent, FunctionTool, RunHooks, Usage
from agents.exceptions import (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    ModelTimeoutError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    ToolTimeoutError,
    UserError,
)
from agents.models import get_default_model
from agents.result import RunResultStreaming
from agents.tool import (
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    default_tool_error_function,
    default_tool_timeout_error_message,
)
from agents.tool_context import ToolContext

from agentctl.runtime.failures import ExecutionError, FailureCode
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.runners.hosted_run import HostedRun, ModelSpan
from agentctl.runtime.runners.library_failures import ToolCalls
from agentctl.runtime.runners.openai_agents_pauses import DecidedCalls, read_arguments

_log = logging.getLogger("agentctl.runtime")

_STRUCTURED = (ToolOutputFileContent, ToolOutputImage, ToolOutputText)

_DEFAULT_ERROR = default_tool_error_function(None, Exception())  # type: ignore[arg-type]
"""The result of a tool that failed, if the tool has no function for it."""

_HOSTED = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "web_search_call",
    }
)
"""Calls that the provider of the model has made: they have ended when they arrive."""

_BY_HOOKS = frozenset({"function_call", "custom_tool_call"})
"""Calls that the hooks report when they begin and end."""

_FAILURES: tuple[tuple[type[Exception], FailureCode, str | None], ...] = (
    (InputGuardrailTripwireTriggered, "GUARDRAIL", "A guardrail refused the message"),
    (OutputGuardrailTripwireTriggered, "GUARDRAIL", "A guardrail refused the answer"),
    (ToolInputGuardrailTripwireTriggered, "GUARDRAIL", "A guardrail refused a tool call"),
    (ToolOutputGuardrailTripwireTriggered, "GUARDRAIL", "A guardrail refused a tool result"),
    (
        MaxTurnsExceeded,
        "AGENT_FAILED",
        "The agent did not finish within its maximum number of turns",
    ),
    (ModelTimeoutError, "MODEL_TIMEOUT", None),
    (ModelRefusalError, "MODEL_REJECTED", None),
    (ModelBehaviorError, "MODEL_REJECTED", None),
    (ToolTimeoutError, "TOOL_FAILED", "A tool did not end in time"),
)
"""The failures of runs by the exceptions of the library."""


class AgentReport:
    """Reports the run of an agent.

    Text, thinking, handoffs and calls that are made elsewhere arrive in the stream; the begin and
    the end of tools and of model calls arrive in hooks, in the task of the library. A hook at the
    end of an answer waits until the stream has been read up to there: so both keep their order.

    Text that a guardrail may still refuse is published when the guardrail has passed.

    Attributes:
        hooks: the hooks of the run.
        usage: the tokens of the run so far, with those of earlier legs.
    """

    def __init__(self, run: HostedRun, agent: Agent[Any], decided: DecidedCalls) -> None:
        self.run = run
        self.hooks: RunHooks[Any] = _Hooks(self)
        self.usage: dict[str, int] = {}
        self._decided = decided
        self._calls = ToolCalls(run)
        self._reported: set[str] = set(run.open_calls)
        self._requested: dict[str, tuple[str, dict[str, Any]]] = {}
        self._agent = agent
        self._input_guardrails = 0 if run.leg is not None else len(agent.input_guardrails)
        self._passed_guardrails = 0
        self._held: list[str] = []
        self._answer_text = False
        self._answer_calls = False
        self._span: ModelSpan | None = None
        self._ended_answers = self._read_answers = 0
        self._has_read = asyncio.Event()

    async def add(self, event: Any, result: RunResultStreaming) -> None:
        """Report an event of the stream."""
        self._passed_guardrails = len(result.input_guardrail_results)
        if event.type == "agent_updated_stream_event":
            self._agent = event.new_agent
        elif event.type == "raw_response_event":
            self._add_piece(event.data)
        elif event.item.type in ("tool_call_item", "handoff_call_item"):
            self._add_call(event.item)
        elif event.item.type in ("tool_call_output_item", "handoff_output_item"):
            self._add_result(event.item.raw_item)
        self._publish()
        await self.run.take_turn()

    def _add_piece(self, piece: Any) -> None:
        if piece.type in ("response.output_text.delta", "response.refusal.delta"):
            self._mark_first_token()
            self._answer_text = self._answer_text or bool(piece.delta)
            self._held.append(piece.delta)
        elif piece.type in (
            "response.reasoning_summary_text.delta",
            "response.reasoning_text.delta",
        ):
            self._mark_first_token()
            self.run.add_thinking(piece.delta)
        elif piece.type == "response.completed":
            self._read_answers += 1
            self._has_read.set()

    def _mark_first_token(self) -> None:
        if self._span is not None:
            self._span.mark_first_token()

    def _publish(self, *, is_final: bool = False) -> None:
        """Publish the text that no guardrail can refuse any more."""
        if not self._held:
            return
        if self._passed_guardrails < self._input_guardrails and not is_final:
            return
        if self._agent.output_guardrails and not self._answer_calls and not is_final:
            return
        text = "".join(self._held)
        self._held.clear()
        self.run.add_text(text)

    def _add_call(self, item: Any) -> None:
        raw = item.raw_item
        kind = _read(raw, "type")
        call_id = _read(raw, "call_id") or _read(raw, "id") or ""
        name = item.tool_name if item.type == "tool_call_item" else _read(raw, "name")
        arguments = read_arguments(raw)
        if kind in _HOSTED:
            self.start_call(call_id, name or kind, arguments)
            output, error = _read(raw, "output"), _read(raw, "error")
            self._calls.end(call_id, output or "", failed=bool(error))
        elif item.type == "handoff_call_item" or kind not in _BY_HOOKS:
            self.start_call(call_id, name or kind, arguments)
        else:
            self._requested[call_id] = name or kind, arguments

    def _add_result(self, raw: Any) -> None:
        call_id, output = _read(raw, "call_id") or "", _read(raw, "output")
        refusal = self._decided.refusals.get(call_id)
        if call_id in self._requested and call_id not in self._reported:
            # The library has refused the call: no tool has begun.
            self.start_call(call_id, *self._requested[call_id])
            refusal = refusal or "The call was not made"
        if call_id in self.run.open_calls:
            text = output if refusal is None else refusal
            self._calls.end(call_id, text, failed=refusal is not None)

    def start_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Report the start of a call, unless the leg before this one has reported it."""
        if call_id not in self._reported:
            self._reported.add(call_id)
            self._calls.start(call_id, name, arguments)

    def begin_answer(self, agent: Agent[Any]) -> None:
        self._answer_text = self._answer_calls = False
        self.run.begin_answer()
        self._span = self.run.start_model_call(_name_model(agent))

    async def end_answer(self, response: Any, usage: Usage) -> None:
        """Report the end of an answer, after everything that the stream has of it."""
        self._ended_answers += 1
        while self._read_answers < self._ended_answers:
            self._has_read.clear()
            await self._has_read.wait()
        span, self._span = self._span, None
        if span is not None:
            span.end(read_usage(response.usage))
        self.set_usage(usage)
        kinds = [item.type for item in response.output]
        self._answer_calls = any(kind not in ("message", "reasoning") for kind in kinds)
        self._publish()

    def set_usage(self, usage: Usage) -> None:
        """Set the tokens of the run; those of agents that are called as tools are among them."""
        self.usage = read_usage(usage)
        # The library reports zeros for a model that reports nothing.
        if any(self.usage.values()):
            self.run.set_usage(self.usage)

    async def begin_tool(self, context: Any) -> None:
        if not isinstance(context, ToolContext):
            await self.run.begin_effect()
            return
        arguments = parse_arguments(context.tool_arguments)
        self.start_call(context.tool_call_id, context.tool_name, arguments)
        await self._decided.begin(context.tool_call_id)

    async def end_tool(self, context: Any, tool: Any, result: object) -> None:
        self.set_usage(context.usage)
        if not isinstance(context, ToolContext):
            return
        call_id, failed = context.tool_call_id, result == _DEFAULT_ERROR
        if isinstance(tool, FunctionTool) and tool.timeout_seconds is not None:
            timeout = {"tool_name": tool.name, "timeout_seconds": tool.timeout_seconds}
            failed = failed or result == default_tool_timeout_error_message(**timeout)
        value = f"The tool {context.tool_name} failed" if failed else _to_value(result)
        self._calls.end(call_id, value, failed=failed)
        text = value if isinstance(value, str) else str(value)
        await self._decided.end(call_id, text, failed=failed)

    async def end(self, result: RunResultStreaming) -> None:
        """Report the result of a run that has ended."""
        self._publish(is_final=True)
        self.set_usage(result.context_wrapper.usage)
        output = result.final_output
        is_missing = not self._answer_text or self._answer_calls
        if isinstance(output, str):
            text = output
        elif output is not None:
            await self.run.set_output(output)
            text = self.run.output_text
        else:
            return
        if is_missing and text:
            self.run.begin_answer()
            self.run.add_text(text)

    def classify(self, error: Exception) -> Exception:
        """Return the public failure for an exception of a tool or model, else the exception."""
        if self._span is not None:
            self._span.end(failed=True)
        cause = error.__cause__
        if isinstance(cause, ExecutionError):
            return cause
        for kind, code, detail in _FAILURES:
            if isinstance(error, kind):
                if isinstance(error, ModelBehaviorError) and self._has_bad_output():
                    code = "OUTPUT_INVALID"
                _log.warning("run %s: the agent ended", self.run.context.run_id, exc_info=error)
                return ExecutionError(code, detail)
        is_wrapped = isinstance(error, UserError) and isinstance(cause, Exception)
        failure = self._calls.classify(cause if is_wrapped and cause is not None else error)
        return error if failure is cause else failure

    def _has_bad_output(self) -> bool:
        is_typed = self._agent.output_type not in (None, str)
        return is_typed and self._answer_text and not self._answer_calls


class _Hooks(RunHooks[Any]):
    def __init__(self, report: AgentReport) -> None:
        self._report = report

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        self._report.begin_answer(agent)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._report.end_answer(response, context.usage)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        await self._report.begin_tool(context)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        await self._report.end_tool(context, tool, result)


def read_usage(usage: Usage) -> dict[str, int]:
    """Return the counters of a model call or of a run."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cache_read_tokens": usage.input_tokens_details.cached_tokens,
        "cache_write_tokens": getattr(usage.input_tokens_details, "cache_write_tokens", 0),
        "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
    }


def list_agents(agent: Agent[Any]) -> list[Agent[Any]]:
    """Return an agent and all that it can hand off to or call as tools, as far as is known."""
    found: dict[int, Agent[Any]] = {}
    waiting: list[Any] = [agent]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Agent) or id(each) in found:
            continue
        found[id(each)] = each
        waiting += [getattr(tool, "_agent_instance", None) for tool in each.tools]
        for handoff in each.handoffs:
            reference = getattr(handoff, "_agent_ref", None)
            waiting.append(reference() if reference is not None else handoff)
    return [*found.values()]


def _name_model(agent: Agent[Any]) -> str:
    model = agent.model
    if model is None:
        return str(get_default_model())
    return model if isinstance(model, str) else str(getattr(model, "model", ""))


def _read(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _to_value(result: object) -> object:
    """Return a result as the model gets it."""
    items = result if isinstance(result, list) and result else [result]
    if all(isinstance(each, _STRUCTURED) for each in items):
        return result
    return result if isinstance(result, str) else str(result)
