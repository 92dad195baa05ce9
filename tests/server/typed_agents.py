"""Agents of pydantic-ai with structured outputs, deps with defaults and agents in tools."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    TextOutput,
    ToolOutput,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import agentctl

GO_ON = Path(__file__).with_name("go-on")
"""A file: the models write the last part of an object when it exists."""

PIECES = ['{"name": "blue', ' whale",', ' "tons": ', "150}"]


class Whale(BaseModel):
    name: str
    tons: int
    ocean: str = "all"


class Fish(BaseModel):
    fins: int


async def write_whale(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Write an object in pieces, the last one when the file exists."""
    name = info.output_tools[0].name
    yield {0: DeltaToolCall(name, tool_call_id="out")}
    for piece in PIECES[:-1]:
        yield {0: DeltaToolCall(json_args=piece)}
    while not GO_ON.exists():
        await asyncio.sleep(0.02)
    yield {0: DeltaToolCall(json_args=PIECES[-1])}


whales = Agent(FunctionModel(stream_function=write_whale), output_type=Whale)
"""An object, streamed."""

either = Agent(FunctionModel(stream_function=write_whale), output_type=[Whale, Fish])
"""One of two objects."""


async def write_number(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    yield {0: DeltaToolCall(info.output_tools[0].name, '{"response": ', tool_call_id="out")}
    yield {0: DeltaToolCall(json_args="7}")}


numbers = Agent(FunctionModel(stream_function=write_number), output_type=int)
"""An output that is no object."""


def double(response: int) -> int:
    """Return the double."""
    return 2 * response


doubles = Agent(FunctionModel(stream_function=write_number), output_type=double)
"""An output function."""


async def think_and_write(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    yield "A fish: "
    yield {0: DeltaToolCall(info.output_tools[0].name, '{"fins": 5}', tool_call_id="out")}


explained = Agent(FunctionModel(stream_function=think_and_write), output_type=Fish)
"""An object after a text."""


async def write_twice(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    name = info.output_tools[0].name
    number = len(messages)
    text = '{"fins": "many"}' if number == 1 else '{"fins": 5}'
    yield {0: DeltaToolCall(name, text, tool_call_id=f"out{number}")}


corrected = Agent(FunctionModel(stream_function=write_twice), output_type=Fish)
"""An object whose first draft is not valid."""


async def call_then_answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call each tool once, then return what they returned."""
    parts = [part for message in messages for part in message.parts]
    results = [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]
    if results or not info.function_tools:
        yield " ".join(results) or _last_text(messages)
        return
    for number, tool in enumerate(info.function_tools):
        yield {number: DeltaToolCall(tool.name, "{}", tool_call_id=f"call{number}")}


def _last_text(messages: list[ModelMessage]) -> str:
    prompts = [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    return str(prompts[-1])


def build(**options: Any) -> Any:
    model = FunctionModel(stream_function=call_then_answer)
    return Agent(model, **options)


inner = build()


def _describe(*results: Any) -> str:
    names = ("input_tokens", "output_tokens")
    return json.dumps([sum(getattr(each.usage, name) for each in results) for name in names])


nested = build()
"""Agents in tools: with the usage of the run, without, and two at the same time."""


@nested.tool
async def ask_with_usage(run: RunContext[Any]) -> str:
    """Ask an agent that adds to the usage of this run."""
    async with inner.run_stream("one two three", usage=run.usage) as result:
        return str(len(await result.get_output()))


@nested.tool
async def ask_without_usage(run: RunContext[Any]) -> str:
    """Ask an agent that counts for itself; return its tokens."""
    async with inner.run_stream("one two three four") as result:
        await result.get_output()
        return _describe(result)


@nested.tool_plain
async def ask_two_at_once() -> str:
    """Ask two agents at the same time; return their tokens."""

    async def ask(text: str) -> Any:
        async with inner.run_stream(text) as result:
            await result.get_output()
            return result

    first, second = await asyncio.gather(ask("one two"), ask("one two three four five"))
    return _describe(first, second)


@dataclass
class Preferences:
    unit: str = "tons"
    asked: list[str] = field(default_factory=list)


class Place(BaseModel):
    ocean: str = "Atlantic"


class Plain:
    def __init__(self, depth: int = 10) -> None:
        self.depth = depth


@dataclass
class Required:
    unit: str


dataclass_deps = build(deps_type=Preferences)


@dataclass_deps.tool
def ask(run: RunContext[Preferences]) -> str:
    """Return the deps."""
    run.deps.asked.append("x")
    return f"{run.deps.unit} {len(run.deps.asked)}"


model_deps = build(deps_type=Place)


@model_deps.tool
def where(run: RunContext[Place]) -> str:
    """Return the deps."""
    return run.deps.ocean


plain_deps = build(deps_type=Plain)


@plain_deps.tool
def how_deep(run: RunContext[Plain]) -> str:
    """Return the deps."""
    return str(run.deps.depth)


required_deps = build(deps_type=Required)
text_deps = build(deps_type=str)

conversation = build(deps_type=agentctl.RunContext)


@conversation.tool
def which(run: RunContext[agentctl.RunContext]) -> str:
    """Return the conversation."""
    return f"{run.conversation_id} {run.deps.session_id}"


def write_output(text: str) -> Any:
    """Return a function that writes an output: by the tool that has its fields, else as text."""

    async def write(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        names = set(json.loads(text)) if text.startswith("{") else set()
        for tool in info.output_tools:
            if names and names <= set(tool.parameters_json_schema["properties"]):
                yield {0: DeltaToolCall(tool.name, text, tool_call_id="out")}
                return
        yield text

    return write


def build_writer(text: str, **options: Any) -> Any:
    return Agent(FunctionModel(stream_function=write_output(text)), **options)


async def write_more(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Write one fin more at each attempt."""
    attempt = len(messages) // 2 + 1
    name = info.output_tools[0].name
    yield {0: DeltaToolCall(name, f'{{"fins": {attempt}}}', tool_call_id=f"out{attempt}")}


validated = Agent(FunctionModel(stream_function=write_more), output_type=Fish)
"""A validator that refuses the first output, and changes the second one."""


@validated.output_validator
def check_fins(output: Fish) -> Fish:
    if output.fins < 2:
        raise ModelRetry("too few fins")
    return Fish(fins=output.fins * 10)


validated_text = build_writer("hello")
"""A validator that changes a text."""


@validated_text.output_validator
def say_it_louder(output: str) -> str:
    return output.upper()


def count_letters(text: str) -> int:
    """Return the number of letters."""
    return len(text)


def shout(text: str) -> str:
    """Return the text in capital letters."""
    return text.upper()


def greet(name: str, times: int) -> str:
    """Return a greeting."""
    return " ".join(["hello", name] * times)


SHARK = '{"name": "shark", "tons": 2}'

union = build_writer(SHARK, output_type=Whale | Fish)
text_or_whale = build_writer(SHARK, output_type=[str, Whale])
text_of_two = build_writer("a shark", output_type=[str, Whale])
greeted = build_writer('{"name": "Ann", "times": 1}', output_type=greet)
counted = build_writer("a shark", output_type=TextOutput(count_letters))
shouted = build_writer("a shark", output_type=TextOutput(shout))
tool_output = build_writer(SHARK, output_type=ToolOutput(Whale, name="write_whale"))
tool_outputs = build_writer(SHARK, output_type=[ToolOutput(Fish), ToolOutput(Whale, name="w")])
tool_union = build_writer(f'{{"response": {SHARK}}}', output_type=ToolOutput(Whale | Fish))
native = build_writer(SHARK, output_type=NativeOutput(Whale))
prompted = build_writer(SHARK, output_type=PromptedOutput([Whale]))
declared = build_writer(SHARK, output_type=[Whale, DeferredToolRequests])
declared_native = build_writer(SHARK, output_type=[NativeOutput(Whale), DeferredToolRequests])
