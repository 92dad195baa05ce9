"""Haystack, its generator and its agent."""

from __future__ import annotations

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
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


def build_model(name: str) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(model=name, api_base_url=URL, api_key=Secret.from_token(KEY))


HELLO = [ChatMessage.from_user("hi there")]


@operation
def first_message() -> None:
    answer = build_model("echo").run(HELLO)["replies"][0]
    expect(answer.text == "hi there", answer)


@operation
def streaming() -> None:
    pieces: list[str] = []
    build_model("echo").run(HELLO, streaming_callback=lambda chunk: pieces.append(chunk.content))
    expect("".join(pieces) == "hi there", pieces)


@operation
def tools() -> None:
    agent = Agent(
        chat_generator=build_model("weather"), tools=[create_tool_from_function(get_weather)]
    )
    answer = agent.run([ChatMessage.from_user(WEATHER)])["messages"][-1]
    expect(SUNNY in answer.text, answer)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_model("hang").run_async(HELLO), "hang")


if __name__ == "__main__":
    report()
