"""Agents of pydantic-ai whose model is an agent of the server, by both interfaces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from operations import due, expect, expect_error, operation, report
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

ADA = '{"name": "Ada", "age": 36}'
QUESTION = 'What is the weather? {"city": "Paris"}'


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"Sunny in {city}"


def define(prefix: str, build: Callable[[str], Any]) -> None:
    """Define the operations of one interface."""

    def add(function: Callable[[], Any], kind: Callable[[Any], Any] = operation) -> None:
        function.__name__ = f"{prefix}_{function.__name__}"
        kind(function)

    def run() -> None:
        result = Agent(build("echo")).run_sync("hello")
        expect(result.output == "hello" and result.usage.total_tokens > 0)

    async def stream() -> None:
        async with Agent(build("echo")).run_stream("one two") as result:
            pieces = [piece async for piece in result.stream_text(delta=True)]
        expect("".join(pieces) == "one two")

    def history() -> None:
        agent = Agent(build("history"))
        first = agent.run_sync("one")
        second = agent.run_sync("two", message_history=first.all_messages())
        users = [text for role, text in json.loads(second.output) if role == "user"]
        expect(users == ["one", "two"], users)

    def instructions() -> None:
        result = Agent(build("history"), instructions="Be brief.").run_sync("hello")
        expect("Be brief." in result.output)

    async def nodes() -> None:
        async with Agent(build("echo")).iter("hello") as run:
            names = [type(node).__name__ async for node in run]
        expect(names[-1] == "End", names)

    def native_output() -> None:
        agent = Agent(build("echo"), output_type=NativeOutput(Person))
        expect(agent.run_sync(ADA).output == Person(name="Ada", age=36))

    def prompted_output() -> None:
        agent = Agent(build("echo"), output_type=PromptedOutput(Person))
        expect(agent.run_sync(ADA).output == Person(name="Ada", age=36))

    def typed_output() -> None:
        agent = Agent(build("typed"), output_type=Person)
        expect(agent.run_sync(ADA).output == Person(name="Ada", age=36))

    def tool() -> None:
        result = Agent(build("weather"), tools=[get_weather]).run_sync(QUESTION)
        expect(result.output == "Sunny in Paris", result.output)

    async def tool_streamed() -> None:
        agent = Agent(build("weather"), tools=[get_weather])
        async with agent.run_stream(QUESTION) as result:
            expect(await result.get_output() == "Sunny in Paris")

    def settings() -> None:
        agent = Agent(build("echo"), model_settings={"temperature": 0.0, "max_tokens": 500})
        expect(agent.run_sync("hello").output == "hello")

    def failing_model() -> None:
        with expect_error(ModelHTTPError, "502"):
            Agent(build("http-500")).run_sync("hello")

    for function in (run, stream, history, instructions, nodes, native_output):
        add(function)
    for function in (prompted_output, typed_output, tool, tool_streamed, settings):
        add(function)
    add(failing_model, due)


define("chat", OpenAIChatModel)
define("responses", OpenAIResponsesModel)


if __name__ == "__main__":
    report()
