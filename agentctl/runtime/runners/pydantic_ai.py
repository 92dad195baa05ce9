"""Agents of pydantic-ai (docs/agents.md "pydantic-ai")."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from copy import copy
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic_ai import Agent, DeferredToolRequests, ToolOutput
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import (
    FinalResultEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessagesTypeAdapter,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

from agentctl.agents import RunContext
from agentctl.records.kinds import ApprovalPolicy
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.models.answering import PROVIDER
from agentctl.runtime.models.attempts import classify_failure
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.models.conversion import build_prompt, extract_usage, to_model_messages
from agentctl.runtime.models.library_model import to_model_failure
from agentctl.runtime.pauses import Parked
from agentctl.runtime.runners import library_runner, pydantic_ai_calls
from agentctl.runtime.runners.declared_types import find_default
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.work.unstopped import install_executor

_current: ContextVar[_NestedUsage | None] = ContextVar("agentctl_nested_usage", default=None)


class PydanticAIRunner(library_runner.LibraryRunner):
    """The runner of an agent of pydantic-ai.

    The deps of a run are the result of the configured function; without one, the `RunContext`, or
    a value of the agent's `deps_type` if all of its fields have defaults.

    Raises:
        UnusableObject: the agent needs deps of another type, and no function makes them; or a
            pattern matches no tool.
    """

    kind = "pydantic-ai"

    def __init__(self, agent: Agent[Any, Any], options: library_runner.RunnerOptions) -> None:
        super().__init__(library_runner.OwnerTask(lambda: agent))
        self.message_obstacle = None
        build_deps = options.build_deps
        self._approve = options.approve

        if build_deps is None and agent.deps_type not in (type(None), object, Any, RunContext):
            build_deps = find_default(agent.deps_type)
            if build_deps is None:
                name = getattr(agent.deps_type, "__name__", str(agent.deps_type))
                raise UnusableObject(
                    f"it needs deps of the type {name}, which cannot be made without values",
                    'set deps = "module:function": a function that makes them of the RunContext',
                )

        pydantic_ai_calls.check_patterns(agent, options.approve)
        self._agent = agent
        self._streams_json = _streams_json(agent.output_type)
        self._build_deps = build_deps

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools that are functions; other toolsets depend on the run."""
        return pydantic_ai_calls.list_function_tools(self._agent)

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller.

        A tool that ignores its cancellation keeps this call from returning; the engine limits that.
        """
        deps = await run.build_deps(self._build_deps)
        execution = _Execution(run, self._approve, self._streams_json)
        try:
            with Agent.using_thread_executor(install_executor()):
                await execution.drive(self._agent, message, deps)
        except ExecutionError:
            raise
        except Exception as error:
            raise execution.classify(error) from error


class _Execution:
    """One leg of a run of an agent: reports what the library emits.

    Args:
        streams_json: True if the arguments of an output tool are the output.
    """

    def __init__(
        self, run: HostedRun, approve: Mapping[str, ApprovalPolicy], streams_json: bool
    ) -> None:
        self._run = run
        self._in_model = False
        self._deferred = pydantic_ai_calls.DeferredCalls(run, approve)
        self._streams_json = streams_json
        self._texts = list[str]()
        self._has_json = False
        self._nested: _NestedUsage

    async def drive(self, agent: Agent[Any, Any], message: str, deps: Any) -> None:
        deferred = self._deferred
        journal = deferred.journal
        end: BaseException | None = None

        if deferred.state is None:
            parse = ModelMessagesTypeAdapter.validate_json
            prompt: Any = build_prompt(await self._run.load_prompt(message))
            history = await self._run.read_history(parse, to_model_messages) or None
        else:
            prompt = None
            history = await deferred.load_messages()
            self._run.counted |= extract_usage(deferred.usage)

        async with agent.iter(
            prompt,
            message_history=history,
            deferred_tool_results=deferred.build_results(),
            usage=deferred.usage,
            deps=deps,
            capabilities=[deferred.hooks],
            toolsets=deferred.client_toolsets,
            conversation_id=self._run.environment.spec.session_id,
        ) as steps:
            pydantic_ai_calls.allow_deferred_calls(steps)
            self._nested = _NestedUsage(steps.usage)

            with self._nested.counting():
                async for node in steps:
                    is_request = Agent.is_model_request_node(node)

                    if Agent.is_call_tools_node(node):
                        deferred.count_calls(node.model_response, steps)
                    if journal is not None and Agent.is_call_tools_node(node):
                        first = deferred.first_message(_count_earlier(steps))
                        await journal.add_answer(node.model_response, first, steps)
                    if journal is not None and journal.is_parking:
                        end = Parked()
                        break

                    if is_request:
                        await self._add_messages(node)
                        await self._stream_answer(node, steps)
                    elif Agent.is_call_tools_node(node):
                        await self._report_calls(node, steps)

            if end is None:
                end = await self._end(steps)

        if end is not None:
            # Outside of the library: its context managers handle no pauses.
            raise end

    async def _end(self, steps: Any) -> BaseException | None:
        """Report the result of the library; return the pause if it has deferred calls."""
        deferred = self._deferred
        messages = steps.all_messages()
        output = steps.result.output
        first = deferred.first_message(_count_earlier(steps))

        if isinstance(output, DeferredToolRequests):
            return deferred.build_pause(output, messages, first, steps)

        await self._report_output(output)

        own_messages = messages[first:]
        self._run.set_native_history(lambda: ModelMessagesTypeAdapter.dump_json(own_messages))
        return None

    async def _add_messages(self, node: Any) -> None:
        """Add the messages that were sent to the run to the next request, after its results."""
        for message in await self._run.recorder.take_messages():
            node.request.parts = [*node.request.parts, UserPromptPart(message.content)]
            self._run.add_message(message)

    async def _report_calls(self, node: Any, steps: Any) -> None:
        try:
            async with node.stream(steps.ctx) as events:
                async for event in events:
                    self._report_call(event)
        finally:
            # Agents that tools have called.
            self._set_usage(steps.usage)

    async def _stream_answer(self, node: Any, steps: Any) -> None:
        self._run.begin_answer()
        self._texts = list[str]()
        self._has_json = False
        output = _OutputStream()

        before = extract_usage(steps.usage)
        span = self._run.start_model_call(steps.ctx.deps.model.model_name)

        try:
            async with node.stream(steps.ctx) as stream:
                try:
                    async for event in stream:
                        span.mark_first_token()
                        self._add_piece(event)

                        if self._streams_json and not self._texts:
                            piece = output.read(event, steps.ctx.deps.tool_manager)
                            self._has_json = self._has_json or bool(piece)
                            self._run.add_text(piece)

                        await self._run.take_turn()
                finally:
                    response = stream.response
                    if response.provider_name == PROVIDER:
                        span.name = response.model_name or span.name

                    answer_id = response.provider_response_id
                    reason = response.finish_reason
                    requests = self._run.transcript.requests
                    requests.report(span, response.model_name, answer_id, reason)

                    self._set_usage(stream.usage)
        except Exception:
            self._in_model = True
            self._run.fail_model_call(span)
            raise

        after = extract_usage(steps.usage)
        used = {name: count - before[name] for name, count in after.items()}
        self._run.end_model_call(span, used, is_counted=True)
        self._set_usage(steps.usage)
        self._run.complete_answer()

    def _add_piece(self, event: object) -> None:
        if isinstance(event, PartStartEvent):
            if isinstance(event.part, TextPart):
                self._add_text(event.part.content)
            elif isinstance(event.part, ThinkingPart):
                self._run.add_thinking(event.part.content)
        elif isinstance(event, PartDeltaEvent):
            if isinstance(event.delta, TextPartDelta):
                self._add_text(event.delta.content_delta)
            elif isinstance(event.delta, ThinkingPartDelta):
                self._run.add_thinking(event.delta.content_delta or "")

    def _add_text(self, text: str) -> None:
        if text:
            self._texts.append(text)
        self._run.add_text(text)

    def _set_usage(self, usage: RunUsage) -> None:
        counters = self._nested.sum_counters(usage)
        if any(counters.values()):
            self._run.set_usage(counters)

    def _report_call(self, event: object) -> None:
        if isinstance(event, FunctionToolCallEvent):
            part = event.part
            if not self._run.transcript.is_open(part.tool_call_id):
                self._run.start_call(part.tool_call_id, part.tool_name, parse_arguments(part.args))
        elif isinstance(event, FunctionToolResultEvent):
            result = event.part
            failed = not isinstance(result, ToolReturnPart) or result.outcome != "success"
            text = pydantic_ai_calls.read_result(result)
            self._run.end_call(result.tool_call_id, text, failed=failed)

    async def _report_output(self, output: object) -> None:
        if isinstance(output, str) and not self._texts:
            self._run.add_text(output)
            return
        if isinstance(output, str) and output in "".join(self._texts):
            return
        # A text that an output function or a validator has changed is no longer the content.
        await self._run.set_output(output)
        if not (self._texts or self._has_json):
            self._run.add_text(self._run.output_text)

    def classify(self, error: Exception) -> Exception:
        """Return the public failure for an exception of a tool or model, else the exception."""
        call_id = self._deferred.find_failed(error)
        failure = library_runner.to_public_failure(
            error, self._run, call_id, in_model=self._in_model
        )
        if failure is error and isinstance(error, AgentRunError):
            classified = classify_failure(to_model_failure(error), self._run.context.run_id)
            # Other errors of the library, such as an exceeded limit of the agent, are its own.
            return error if classified.code == "INTERNAL" else classified
        return failure


def _count_earlier(steps: Any) -> int:
    return len(steps.all_messages()) - len(steps.new_messages())


def _streams_json(output_type: Any) -> bool:
    """Return True if the arguments of each output tool of an agent are its output.

    Those of an output function are not, and the library wraps outputs that are no objects, which
    `_OutputStream` sees at their tool.
    """
    outputs = output_type if isinstance(output_type, list | tuple) else [output_type]
    types = [part for output in outputs for part in _list_types(output)]
    return all(isinstance(output, type) for output in types if output is not DeferredToolRequests)


def _list_types(output: Any) -> tuple[Any, ...]:
    if isinstance(output, ToolOutput):
        return (output.output,)
    # The library creates an output tool for each type of a union.
    return get_args(output) if get_origin(output) in (Union, UnionType) else (output,)


class _OutputStream:
    """The JSON of a structured output in one answer of a model, while the model writes it.

    A model writes an output that is an object as the arguments of an output tool.
    """

    def __init__(self) -> None:
        self._parts: dict[int, ToolCallPart] = {}
        self._index: int | None = None

    def read(self, event: object, tools: Any) -> str:
        """Return the JSON that an event adds to the output; empty if it adds none."""
        if isinstance(event, PartStartEvent) and isinstance(event.part, ToolCallPart):
            self._parts[event.index] = event.part
        elif isinstance(event, FinalResultEvent) and event.tool_name is not None:
            return self._begin(event, tools)
        elif isinstance(event, PartDeltaEvent) and event.index == self._index:
            delta = event.delta
            if isinstance(delta, ToolCallPartDelta) and isinstance(delta.args_delta, str):
                return delta.args_delta
        return ""

    def _begin(self, event: FinalResultEvent, tools: Any) -> str:
        tool = tools.get_tool_def(event.tool_name)
        if tool is None or tool.outer_typed_dict_key is not None:
            return ""

        for index, part in self._parts.items():
            is_named = part.tool_name == event.tool_name
            if is_named and event.tool_call_id in (None, part.tool_call_id):
                # Some models send their arguments as a whole and not as text.
                if isinstance(part.args, dict):
                    return ""
                self._index = index
                return part.args or ""

        return ""


class _NestedUsage:
    """The tokens of a run with those of the agents that its tools call, each counted once.

    A tool may hand the usage of its run on (`usage=ctx.usage`): then the library adds the tokens of
    the nested agent to it. Otherwise only the nested agent knows its tokens. The library has no
    hook for the runs of all agents, so `Agent.iter`, through which each of them goes, is replaced.

    Args:
        usage: the usage of the run, to which the library adds.
    """

    def __init__(self, usage: RunUsage) -> None:
        self._usage = usage
        self._nested: list[tuple[RunUsage, dict[str, int]]] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the agents that are called in the block, and in its tasks and threads."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def add(self, usage: RunUsage) -> None:
        """Count the usage of a nested run that begins, unless it is counted already."""
        known_usages = [self._usage, *(nested for nested, _ in self._nested)]

        if not any(usage is known_usage for known_usage in known_usages):
            self._nested.append((usage, extract_usage(copy(usage))))

    def sum_counters(self, usage: RunUsage) -> dict[str, int]:
        """Return the sums of the token counters.

        Args:
            usage: the usage of the run so far, without nested runs that have their own.
        """
        sums = extract_usage(usage)
        for nested, before in tuple(self._nested):
            for name, count in extract_usage(nested).items():
                sums[name] += count - before[name]
        return sums


def _count_runs() -> None:
    original: Any = Agent.iter
    if getattr(original, "counts_runs", False):
        return

    @functools.wraps(original)
    @asynccontextmanager
    async def iterate(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with original(self, *args, **options) as steps:
            if (nested := _current.get()) is not None:
                nested.add(steps.usage)
            yield steps

    iterate.counts_runs = True  # type: ignore[attr-defined]
    setattr(Agent, "iter", iterate)  # noqa: B010


_count_runs()
