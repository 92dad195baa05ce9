"""Agents of openai-agents whose model is an agent of the server."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from operations import expect, operation, report
from pydantic import BaseModel

set_tracing_disabled(True)
QUESTION = 'What is the weather? {"city": "Paris"}'


class Person(BaseModel):
    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"Sunny in {city}"


def build(model: str, *, chat: bool = False, **options: Any) -> Agent[Any]:
    kind: Any = OpenAIChatCompletionsModel if chat else OpenAIResponsesModel
    return Agent(name="Assistant", model=kind(model, AsyncOpenAI()), **options)


@operation
async def run() -> None:
    result = await Runner.run(build("echo"), "hello")
    expect(result.final_output == "hello")


@operation
async def run_streamed() -> None:
    result = Runner.run_streamed(build("echo"), "hello")
    types = [event.type async for event in result.stream_events()]
    expect(result.final_output == "hello" and "raw_response_event" in types, types)


@operation
async def instructions() -> None:
    result = await Runner.run(build("history", instructions="Be brief."), "hello")
    expect("Be brief." in result.final_output)


@operation
async def output_type() -> None:
    text = '{"name": "Ada", "age": 36}'
    result = await Runner.run(build("echo", output_type=Person), text)
    expect(result.final_output == Person(name="Ada", age=36))


@operation
async def session() -> None:
    agent = build("history")
    kept = SQLiteSession("talk")
    await Runner.run(agent, "one", session=kept)
    result = await Runner.run(agent, "two", session=kept)
    expect("one" in result.final_output, result.final_output)


@operation
async def previous_response() -> None:
    agent = build("history")
    first = await Runner.run(agent, "one")
    result = await Runner.run(agent, "two", previous_response_id=first.last_response_id)
    expect("one" in result.final_output, result.final_output)


@operation
async def chat_completions() -> None:
    result = await Runner.run(build("echo", chat=True), "hello")
    expect(result.final_output == "hello")


@operation
async def chat_completions_streamed() -> None:
    result = Runner.run_streamed(build("echo", chat=True), "hello")
    async for _ in result.stream_events():
        pass
    expect(result.final_output == "hello")


@operation
async def tool() -> None:
    result = await Runner.run(build("weather", tools=[get_weather]), QUESTION)
    expect(result.final_output == "Sunny in Paris", result.final_output)


@operation
async def tool_streamed() -> None:
    result = Runner.run_streamed(build("weather", tools=[get_weather]), QUESTION)
    async for _ in result.stream_events():
        pass
    expect(result.final_output == "Sunny in Paris", result.final_output)


@operation
async def tool_by_chat_completions() -> None:
    result = await Runner.run(build("weather", chat=True, tools=[get_weather]), QUESTION)
    expect(result.final_output == "Sunny in Paris", result.final_output)


@operation
async def handoff() -> None:
    second = build("history").clone(name="Echo")
    result = await Runner.run(build("triage", handoffs=[second]), "hello")
    expect(result.last_agent.name == "Echo" and "hello" in result.final_output, result)


if __name__ == "__main__":
    report()
