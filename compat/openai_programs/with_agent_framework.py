"""Microsoft Agent Framework with its client for OpenAI."""

from __future__ import annotations

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from operations import (
    KEY,
    SUNNY,
    URL,
    WEATHER,
    expect,
    expect_cancel,
    get_weather,
    operation,
    report,
)


def build_agent(name: str, kind: type = OpenAIChatClient) -> Agent:
    client = kind(model=name, api_key=KEY, base_url=URL)
    return Agent(client=client, name="helper", instructions="Be brief.", tools=[get_weather])


@operation
async def first_message() -> None:
    answer = await build_agent("echo").run("hi there")
    expect(answer.text == "hi there", answer.text)


@operation
async def streaming() -> None:
    stream = build_agent("echo").run("hi there", stream=True)
    pieces = [piece async for piece in stream]
    answer = await stream.get_final_response()
    expect(answer.text == "hi there" and len(pieces) > 1, answer.text)


@operation
async def tools() -> None:
    answer = await build_agent("weather").run(WEATHER)
    expect(SUNNY in answer.text, answer.text)


@operation
async def tools_of_chat_completions() -> None:
    answer = await build_agent("weather", OpenAIChatCompletionClient).run(WEATHER)
    expect(SUNNY in answer.text, answer.text)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_agent("hang").run("x"), "hang")


if __name__ == "__main__":
    report()
