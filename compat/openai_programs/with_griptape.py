"""Griptape with its driver for OpenAI."""

from __future__ import annotations

from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.structures import Agent
from griptape.utils import Stream
from operations import KEY, URL, expect, operation, report


def build_agent(name: str, *, stream: bool = False) -> Agent:
    driver = OpenAiChatPromptDriver(model=name, base_url=URL, api_key=KEY, stream=stream)
    return Agent(prompt_driver=driver)


@operation
def first_message() -> None:
    answer = build_agent("echo").run("hi there").output.value
    expect(answer == "hi there", answer)


@operation
def streaming() -> None:
    pieces = [piece.value for piece in Stream(build_agent("echo", stream=True)).run("hi there")]
    expect("".join(pieces).strip() == "hi there", pieces)


if __name__ == "__main__":
    report()
