"""Runners for Python functions: `(message, context)`, asynchronous, a generator, or synchronous.

If the first parameter has the type of an object, the function gets the object `input` of the
request instead of the message (docs/python.md "Input"). A function that waits runs again from
its top (docs/python.md "Wait for people").
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

from agentctl.agents import Output, Progress, Thinking, ToolCompleted, ToolStarted, Usage
from agentctl.records.text import PieceJoiner
from agentctl.runtime.context import is_run_context
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.pauses import InputSchema
from agentctl.runtime.runners.declared_types import read_input_schema
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.replay import Replay, ReplayedOutput
from agentctl.runtime.runners.runner import Runner
from agentctl.work.event_loop import TooManyAbandonedThreads


def build_function_runner(function: Callable[..., Any]) -> Runner:
    """Build the runner of a function.

    Raises:
        UnusableObject: the function cannot be called with a message and a context.
    """
    parameters = _read_parameters(function)
    if inspect.isasyncgenfunction(function):
        return GeneratorRunner(function, parameters)
    if inspect.isgeneratorfunction(function):
        raise UnusableObject("it is a generator that is not asynchronous: write async def")
    return FunctionRunner(function, parameters, is_async=inspect.iscoroutinefunction(function))


_CONTEXT_NAMES = ("context", "ctx", "run_context")


class _Parameters(NamedTuple):
    """The parameters of a function: the names of the first one and of the context."""

    message: str
    context: str | None
    input_schema: InputSchema | None


def _read_parameters(function: Callable[..., Any]) -> _Parameters:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UnusableObject("its parameters cannot be read") from error

    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception:
        hints = {}

    names = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (parameter.default is parameter.empty or is_run_context(hints.get(parameter.name)))
    ]

    if "RunnableConfig" in [getattr(hints.get(name), "__name__", "") for name in names]:
        raise UnusableObject(
            "it takes a RunnableConfig, which a factory for the server of LangGraph gets",
            "remove the parameter; the nodes of a graph read the configuration of a run",
        )

    contexts = [name for name in names if is_run_context(hints.get(name))]
    message_names = [name for name in names if name not in contexts]

    if not contexts and len(message_names) == 2:
        first, second = message_names
        if first in _CONTEXT_NAMES and second not in _CONTEXT_NAMES:
            raise UnusableObject(
                f"its parameters are ({first}, {second}): the message is the first one",
                f"write ({second}, {first}), or annotate {first}: agentctl.RunContext",
            )
        contexts = [message_names.pop()]

    positional = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]

    if positional or len(message_names) != 1 or len(contexts) > 1:
        raise UnusableObject("its parameters are not (message) or (message, context)")

    context = contexts[0] if contexts else None
    return _Parameters(message_names[0], context, read_input_schema(hints.get(message_names[0])))


class _PythonRunner:
    """The common part of the runners of functions."""

    native_kinds: Sequence[str] = ()
    message_obstacle: str | None = None

    def __init__(self, function: Callable[..., Any], parameters: _Parameters) -> None:
        self._function = function
        self._message, self._context, self.input_schema = parameters

    async def open(self) -> None:
        """Do nothing: a function has nothing to open."""

    async def close(self) -> None:
        """Do nothing."""

    async def _bind(self, run: HostedRun) -> Callable[[], Any]:
        arguments = {self._message: await run.read_input(self.input_schema)}
        if self._context is not None:
            arguments[self._context] = run.context
        return partial(self._function, **arguments)


class FunctionRunner(_PythonRunner):
    """The runner of a function that returns its result.

    A string is the answer. Of another value, such as a pydantic model, the JSON is the answer and
    the value is the output. None is an empty answer. A synchronous function is called in a new
    thread, which a cancel cannot stop.
    """

    kind = "function"

    def __init__(
        self, function: Callable[..., Any], parameters: _Parameters, *, is_async: bool
    ) -> None:
        super().__init__(function, parameters)
        self._is_async = is_async
        if not is_async:
            self.message_obstacle = "A synchronous function takes no messages while it works"

    async def run(self, message: str, run: HostedRun) -> None:
        call = await self._bind(run)

        if self._is_async:
            result = await Replay(run).execute(call(), list)
        elif run.environment.leg is not None:
            # It cannot repeat the calls of the asynchronous function that it was.
            raise ExecutionError("REPLAY_MISMATCH")
        else:
            try:
                result = await run.call_in_thread(call)
            except TooManyAbandonedThreads:
                raise ExecutionError(
                    "AGENT_FAILED", "The agent was not called: too many earlier calls never ended"
                ) from None

        run.add_text(await run.set_result(result))


class GeneratorRunner(_PythonRunner):
    """The runner of an async generator, which yields text and events as they arise."""

    kind = "generator"

    async def run(self, message: str, run: HostedRun) -> None:
        """Report everything that the generator yields.

        A cancel is raised inside the generator. If the generator continues, the next report raises
        it again, and the generator is closed.
        """
        replay = Replay(run)
        leg = run.environment.leg
        events = () if leg is None else leg.state.get("output", ())
        output = ReplayedOutput(run.transcript.content, events)
        await replay.execute(self._iterate(run, replay, output), output.finish)

    async def _iterate(self, run: HostedRun, replay: Replay, output: ReplayedOutput) -> None:
        generator: AsyncIterator[Any] = (await self._bind(run))()
        pieces = PieceJoiner()
        async with aclosing(generator):  # type: ignore[type-var]  # an async generator function
            async for item in generator:
                if replay.paused is not None:
                    return
                if isinstance(item, str):
                    run.recorder.check_room(len(item))
                    item = pieces.add(str.__str__(item))
                elif rest := pieces.end():
                    run.add_text(output.take_text(rest))

                repeats = output.is_replaying or replay.drops_reports
                await _report(item, run, output, repeats=repeats)
                await run.take_turn()

        if rest := pieces.end():
            run.add_text(output.take_text(rest))

        output.finish()


async def _report(item: object, run: HostedRun, output: ReplayedOutput, *, repeats: bool) -> None:
    """Report what a generator has yielded, unless it repeats an earlier leg."""
    if isinstance(item, str):
        run.add_text(output.take_text(item))
        return

    if isinstance(item, Progress | Usage):
        if repeats:
            run.checkpoint()
            return
    elif isinstance(item, Thinking | ToolStarted | ToolCompleted | Output):
        values = {field.name: getattr(item, field.name) for field in fields(item)}
        if not output.take_event(type(item).__name__, values):
            run.checkpoint()
            return

    match item:
        case Thinking(text=text):
            run.add_thinking(text)
        case ToolStarted(call_id=call_id, name=name, arguments=arguments):
            call_arguments = {"input": arguments} if isinstance(arguments, str) else arguments
            run.start_call(call_id, name, call_arguments)
        case ToolCompleted(call_id=call_id, result=result, failed=failed):
            run.end_call(call_id, result, failed=failed)
        case Progress(text=text, fraction=fraction):
            run.checkpoint()
            run.context.progress(text, fraction=fraction)
        case Usage():
            run.environment.add_usage(item.counters())
        case Output(value=value):
            await run.set_output(value)
        case _:
            kind = type(item).__name__
            raise TypeError(f"the generator yielded {kind}, not str or an event of agentctl")
