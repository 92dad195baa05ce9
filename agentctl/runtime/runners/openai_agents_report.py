"""Reports what an agent of openai-agents does: its answers, tool calls, tokens and result."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import orjson
from agents import Agent, AgentHooks, FunctionTool, RunContextWrapper, RunHooks
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
from agents.result import RunResultStreaming
from agents.run import AgentRunner
from agents.run_internal import tool_execution
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
from agentctl.runtime.runners.library_runner import DecidedCalls, to_public_failure
from agentctl.runtime.runners.openai_agents_parts import (
    Part,
    RunParts,
    get_tool_agent,
    has_calls,
    read_arguments,
    read_text,
    read_usage,
)

_log = logging.getLogger("agentctl.runtime")

_STRUCTURED = (ToolOutputFileContent, ToolOutputImage, ToolOutputText)

_DEFAULT_ERROR = default_tool_error_function(None, Exception())
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

_TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})

_THINKING = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})

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
    (ModelBehaviorError, "MODEL_ANSWER_INVALID", None),
    (ToolTimeoutError, "TOOL_FAILED", "A tool did not end in time"),
)
"""The failures of runs by the exceptions of the library."""

current_report: ContextVar[AgentReport | None] = ContextVar("openai_agents_report", default=None)
"""The report of the run to which a task belongs."""


class AgentReport(RunHooks[Any]):  # type: ignore[misc]
    """Reports the run of an agent.

    Text, thinking, handoffs and calls that are made elsewhere arrive in the stream; the begin and
    the end of tools and of model calls arrive in hooks, in tasks of the library. The hooks of a
    model call wait until the stream has been read up to there: so both keep their order. These
    hooks do not see the runs of agents that are called as tools, see `MemberHooks`.

    Text that a guardrail may still refuse is published when the guardrail has passed.

    Args:
        stored: the state of the report at the pause before this leg.
    """

    def __init__(
        self,
        agent: Agent[Any],
        parts: RunParts,
        decided: DecidedCalls,
        checkpoint: Mapping[str, Any] | None,
    ) -> None:
        self.parts = parts
        self._run = parts.root.run
        self._decided = decided
        self._requested: dict[str, tuple[str, dict[str, Any]]] = {}
        self._handoffs: deque[str] = deque(checkpoint["handoffs"] if checkpoint else ())

        self._agent = agent
        self._next: Agent[Any] | None = None
        self._transfer: str | None = None

        self._input_guardrails = len(agent.input_guardrails) if checkpoint is None else 0
        self._passed_guardrails = 0
        self._held: list[str] = []
        self._answer_text = False
        self._answer_calls = False
        self._ended_answers = 0
        self._read_answers = 0
        self._has_read = asyncio.Event()

    def to_json(self) -> dict[str, Any]:
        """Return the state of the report for the next leg."""
        return {"handoffs": [*self._handoffs], **self.parts.to_json()}

    async def add(self, event: Any, result: RunResultStreaming) -> None:
        """Report an event of the stream."""
        # One that has refused the message is in the results before the library ends the run.
        self._passed_guardrails = sum(
            not guardrail.output.tripwire_triggered for guardrail in result.input_guardrail_results
        )

        if event.type == "raw_response_event":
            self._add_piece(event.data)
        elif event.type == "agent_updated_stream_event":
            self._agent = event.new_agent
            if event.new_agent is self._next:
                self._hand_off(event.new_agent)
        elif event.item.type == "handoff_output_item":
            self._transfer = _read(event.item.raw_item, "output")
        elif event.item.type in ("tool_call_item", "handoff_call_item"):
            self._add_call(event.item)
        elif event.item.type == "tool_call_output_item":
            self._add_result(event.item.raw_item)

        self._publish()
        self._has_read.set()
        await self._run.take_turn()

    async def _wait_for_stream(self, has_read: Callable[[], bool]) -> None:
        while not has_read():
            self._has_read.clear()
            await self._has_read.wait()

    def _add_piece(self, piece: Any) -> None:
        if piece.type in _TEXT:
            self.parts.current.mark_first_token()
            self._answer_text = self._answer_text or bool(piece.delta)
            self._held.append(piece.delta)
        elif piece.type in _THINKING:
            self.parts.current.mark_first_token()
            self.parts.current.run.add_thinking(piece.delta)
        elif piece.type == "response.completed":
            self._read_answers += 1

    def _publish(self, *, is_final: bool = False) -> None:
        """Publish the text that no guardrail can refuse any more."""
        if not self._held:
            return
        is_waiting = self._passed_guardrails < self._input_guardrails
        is_last = bool(self._agent.output_guardrails) and not self._answer_calls
        if (is_waiting or is_last) and not is_final:
            return

        text = "".join(self._held)
        self._held.clear()
        for run in self.parts.list_answering():
            run.add_text(text)

    def _add_call(self, item: Any) -> None:
        raw = item.raw_item
        kind = _read(raw, "type")

        part = self.parts.current
        call_id = _read(raw, "call_id") or _read(raw, "id") or ""
        name = item.tool_name if item.type == "tool_call_item" else _read(raw, "name")
        arguments = read_arguments(raw)

        if item.type == "handoff_call_item":
            part.start_call(call_id, name, arguments)
            self._handoffs.append(call_id)
        elif kind in _HOSTED:
            part.start_call(call_id, name or kind, arguments)
            output = _read(raw, "output")
            error = _read(raw, "error")
            part.run.end_call(call_id, output or "", failed=bool(error))
        elif kind in _BY_HOOKS:
            self._requested[call_id] = name or kind, arguments
        else:
            part.start_call(call_id, name or kind, arguments)

    def _add_result(self, raw: Any) -> None:
        call_id = _read(raw, "call_id") or ""
        output = _read(raw, "output")
        part = self.parts.find_owner(call_id)
        text, failed = self._decided.settled.get(call_id, (None, True))

        if call_id in self._requested and call_id not in part.started:
            # The library has refused the call, and its output is what the model gets.
            part.start_call(call_id, *self._requested[call_id])
            text = text or str(output)

        if part.run.transcript.is_open(call_id):
            if text is None:
                text = output
                failed = False
            part.run.end_call(call_id, text, failed=failed)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        await self._wait_for_stream(lambda: self._next is None)
        await self._run.environment.wait_while_halted()
        self._answer_text = self._answer_calls = False
        for run in self.parts.list_answering():
            run.begin_answer()
        self.parts.current.start_model_call(agent)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Report the end of an answer, after everything that the stream has of it."""
        self._ended_answers += 1
        await self._wait_for_stream(lambda: self._read_answers >= self._ended_answers)
        self.parts.end_model_call(self.parts.current, response)
        if not self._answer_text and (text := read_text(response)):
            # A model whose answers arrive as a whole.
            self._answer_text = True
            self._held.append(text)
        self._answer_calls = has_calls(response)
        self._publish()

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Let an agent continue the conversation after the results of this turn in the stream."""
        self._next = to_agent

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        await self.begin_tool(self.parts.current, context, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        await self.end_tool(self.parts.current, context, tool, result)

    def _hand_off(self, agent: Agent[Any]) -> None:
        # A filter of the author may have removed the result from the stream.
        result = self._transfer or orjson.dumps({"assistant": agent.name}).decode()
        self.parts.hand_off(agent.name, self._handoffs.popleft(), result)
        self._handoffs.clear()
        self._next = self._transfer = None

    def refuse_call(self, context: ToolContext[Any]) -> str | None:
        """Report a call that repeats earlier ones, and return its result; else None."""
        call_id = context.tool_call_id
        part = self.parts.find_owner(call_id)
        refusal = part.run.repeats.find_refusal(call_id)
        if refusal is None or call_id in self._decided.approved:
            return None

        part.start_call(call_id, context.tool_name, parse_arguments(context.tool_arguments))
        part.run.end_call(call_id, refusal, failed=True)
        return refusal

    async def begin_tool(self, part: Part, context: Any, tool: Any) -> None:
        """Report that a tool of the run or of a member begins; it waits until this returns."""
        if not isinstance(context, ToolContext):
            await self._run.environment.begin_effect(getattr(tool, "name", None))
            return
        arguments = parse_arguments(context.tool_arguments)
        part.start_call(context.tool_call_id, context.tool_name, arguments)
        if (agent := get_tool_agent(tool)) is not None:
            self.parts.start_member(part, agent.name, context.tool_call_id, arguments)
        await self._decided.begin(context.tool_call_id, tool=context.tool_name)

    async def end_tool(self, part: Part, context: Any, tool: Any, result: object) -> None:
        """Report the result of a tool of the run or of a member."""
        if not isinstance(context, ToolContext):
            return
        call_id = context.tool_call_id

        # Only texts are compared: comparing an array or a table returns another one, not a bool.
        failed = isinstance(result, str) and result in _list_failures(tool)
        value = f"The tool {context.tool_name} failed" if failed else _to_value(result)
        text = value if isinstance(value, str) else str(value)

        self.parts.end_member(call_id, text, failed=failed)

        try:
            part.run.end_call(call_id, value, failed=failed)
        finally:
            # The call was made, also if its result makes the run too large.
            await self._decided.end(call_id, text, failed=failed)

    async def end(self, result: RunResultStreaming) -> None:
        """Report the result of a run that has ended."""
        self._publish(is_final=True)
        self.parts.count_rest(result.context_wrapper.usage)
        output = result.final_output
        if output is None:
            return

        for run in self.parts.list_answering():
            text = await run.set_result(output)
            if text and (self._answer_calls or not self._answer_text):
                # The result of a tool, or of a model that wrote no text.
                run.begin_answer()
                run.add_text(text)

    def classify(self, error: Exception) -> Exception:
        """Return the public failure for an exception of a tool or model, else the exception."""
        part = self.parts.current
        in_model = part.fail_model_call()

        cause = error.__cause__
        if isinstance(cause, ExecutionError):
            return cause

        for kind, code, detail in _FAILURES:
            if isinstance(error, kind):
                if kind is ModelBehaviorError and self._has_bad_output():
                    code = "OUTPUT_INVALID"
                _log.warning("run %s: the agent ended", self._run.context.run_id, exc_info=error)
                self._run.environment.keep_cause(error)
                return ExecutionError(code, detail)

        if isinstance(error, UserError) and isinstance(cause, Exception):
            # What a tool has raised; with several open calls it is not known which one.
            calls = [*part.run.transcript.open_calls]
            call_id = calls[0] if len(calls) == 1 else None
            failure = to_public_failure(cause, part.run, call_id)
            return error if failure is cause else failure

        return to_public_failure(error, part.run, in_model=in_model)

    def _has_bad_output(self) -> bool:
        is_typed = self._agent.output_type not in (None, str)
        return is_typed and self._answer_text and not self._answer_calls


class CountingRunner(AgentRunner):  # type: ignore[misc]
    """The runner of the library; counts runs that the code of an agent starts by itself.

    With the wrapper of the outer run as its context, a run counts its tokens there by itself; so do
    the models of the configuration (`reports_calls`).
    """

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        result = await super().run(starting_agent, input, **options)
        _count_tokens(result, starting_agent, options)
        return result

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        result = super().run_streamed(starting_agent, input, **options)
        # The run of the server has its report as hooks, which count.
        if not isinstance(options.get("hooks"), AgentReport) and result.run_loop_task is not None:
            count = functools.partial(_count_tokens, result, starting_agent, options)
            result.run_loop_task.add_done_callback(lambda _: count())
        return result


def _count_tokens(result: Any, agent: Agent[Any], options: Mapping[str, Any]) -> None:
    """Add the tokens of a run to the run whose code has started it, unless they are counted."""
    is_counted = isinstance(options.get("context"), RunContextWrapper) or getattr(
        agent.model, "reports_calls", False
    )
    report = current_report.get()
    if report is not None and not is_counted:
        usage = read_usage(result.context_wrapper.usage)
        report.parts.root.run.environment.add_usage(usage)


class MemberHooks(AgentHooks[Any]):  # type: ignore[misc]
    """The hooks of an agent that is called as a tool; calls those of its author, too.

    The library takes no hooks for such a run, so they belong to the agent. They have an effect in
    the runs of this server only, which `current_report` names.
    """

    def __init__(self, inner: Any) -> None:
        self._inner: Any = inner or AgentHooks()

    async def on_start(self, context: Any, agent: Any) -> None:
        await self._inner.on_start(context, agent)

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._inner.on_end(context, agent, output)

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        await self._inner.on_handoff(context, agent, source)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        if (part := _find_part(context)) is not None:
            part.run.begin_answer()
            part.start_model_call(agent)
        await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        report = current_report.get()
        part = _find_part(context)
        if report is not None and part is not None:
            report.parts.end_model_call(part, response)
            if has_calls(response) or not agent.output_guardrails:
                part.run.add_text(read_text(response))
        await self._inner.on_llm_end(context, agent, response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        report = current_report.get()
        part = _find_calling(context)
        if report is not None and part is not None:
            await report.begin_tool(part, context, tool)
        await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        report = current_report.get()
        part = _find_calling(context)
        if report is not None and part is not None:
            await report.end_tool(part, context, tool, result)
        await self._inner.on_tool_end(context, agent, tool, result)


class AddedHooks(MemberHooks):
    """The hooks of an agent whose author has given it none.

    The library stores no run with two agents that only their hooks may tell apart. These hooks tell
    nothing apart, and of hooks that can be called the library does not think so.
    """

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self) -> None:
        """Do nothing: the library never calls them."""


def _find_part(context: Any) -> Part | None:
    """Return the member whose model is called: it has the context of its tool call."""
    report = current_report.get()
    if report is None or not isinstance(context, ToolContext):
        return None
    return report.parts.find(context.tool_call_id)


def _find_calling(context: Any) -> Part | None:
    """Return the member whose model has requested a call; None for a call of the run itself."""
    report = current_report.get()
    if report is None or not isinstance(context, ToolContext):
        return None
    part = report.parts.find_owner(context.tool_call_id)
    return part if part.is_called else None


def _read(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _list_failures(tool: Any) -> list[str]:
    """Return the results that the library itself gives for a failed call of a tool."""
    if not isinstance(tool, FunctionTool) or tool.timeout_seconds is None:
        return [_DEFAULT_ERROR]
    timeout = default_tool_timeout_error_message(
        tool_name=tool.name, timeout_seconds=tool.timeout_seconds
    )
    return [_DEFAULT_ERROR, timeout]


def _to_value(result: object) -> object:
    """Return a result as the model gets it."""
    items = result if isinstance(result, list) and result else [result]
    if all(isinstance(item, _STRUCTURED) for item in items):
        return result

    return result if isinstance(result, str) else str(result)


def _watch_guardrails() -> None:
    """Refuse calls in the place of the guardrails of tools: a hook cannot answer for a tool."""
    execute: Any = tool_execution._execute_tool_input_guardrails

    @functools.wraps(execute)
    async def refuse_or_execute(*, tool_context: ToolContext[Any], **options: Any) -> str | None:
        report = current_report.get()
        refusal = None if report is None else report.refuse_call(tool_context)
        if refusal is not None:
            return refusal
        message: str | None = await execute(tool_context=tool_context, **options)
        return message

    setattr(tool_execution, "_execute_tool_input_guardrails", refuse_or_execute)  # noqa: B010


_watch_guardrails()
