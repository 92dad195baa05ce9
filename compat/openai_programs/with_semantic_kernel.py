"""Semantic Kernel with its service for OpenAI."""

from __future__ import annotations

from openai import AsyncOpenAI
from operations import KEY, SUNNY, URL, expect, expect_cancel, get_weather, operation, report
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Weather:
    @kernel_function(name="get_weather", description="Return the weather of a city")
    def get_weather(self, city: str) -> str:
        return get_weather(city)


def build_agent(name: str, *plugins: object) -> ChatCompletionAgent:
    client = AsyncOpenAI(base_url=URL, api_key=KEY)
    service = OpenAIChatCompletion(ai_model_id=name, async_client=client)
    return ChatCompletionAgent(service=service, name="helper", plugins=list(plugins))


@operation
async def first_message() -> None:
    answer = await build_agent("echo").get_response("hi there")
    expect(str(answer) == "hi there", answer)


@operation
async def streaming() -> None:
    pieces = [str(piece) async for piece in build_agent("echo").invoke_stream("hi there")]
    expect("".join(pieces) == "hi there", pieces)


@operation
async def tools() -> None:
    # The library names a function with that of its plugin.
    agent = build_agent("plan", Weather())
    plan = (
        '[{"tool_calls": [{"id": "c", "type": "function", "function": {"name":'
        ' "Weather-get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}]}]'
    )
    answer = await agent.get_response(plan)
    expect(SUNNY in str(answer), answer)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_agent("hang").get_response("x"), "hang")


if __name__ == "__main__":
    report()
