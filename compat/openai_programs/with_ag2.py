"""AG2 with its configuration for OpenAI."""

from __future__ import annotations

from ag2 import Agent
from ag2.config import OpenAIConfig
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


def build_agent(name: str, *, streaming: bool = False) -> Agent:
    config = OpenAIConfig(model=name, base_url=URL, api_key=KEY, streaming=streaming)
    return Agent("helper", config=config, tools=[get_weather])


@operation
async def first_message() -> None:
    answer = await build_agent("echo").ask("hi there")
    expect(answer.body == "hi there", answer)


@operation
async def streaming() -> None:
    answer = await build_agent("echo", streaming=True).ask("hi there")
    expect(answer.body == "hi there", answer)


@operation
async def tools() -> None:
    answer = await build_agent("weather").ask(WEATHER)
    expect(SUNNY in answer.body, answer)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_agent("hang").ask("x"), "hang")


if __name__ == "__main__":
    report()
