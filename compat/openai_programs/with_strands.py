"""Strands Agents with its model for OpenAI."""

from __future__ import annotations

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
from strands import Agent, tool
from strands.models.openai import OpenAIModel


def build_agent(name: str) -> Agent:
    model = OpenAIModel(client_args={"base_url": URL, "api_key": KEY}, model_id=name)
    return Agent(model=model, tools=[tool(get_weather)], callback_handler=None)


@operation
def first_message() -> None:
    answer = str(build_agent("echo")("hi there"))
    expect(answer.strip() == "hi there", answer)


@operation
async def streaming() -> None:
    events = [event async for event in build_agent("echo").stream_async("hi there")]
    pieces = [event["data"] for event in events if "data" in event]
    expect("".join(pieces) == "hi there", pieces)


@operation
def tools() -> None:
    answer = str(build_agent("weather")(WEATHER))
    expect(SUNNY in answer, answer)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_agent("trickle").invoke_async("x"))


if __name__ == "__main__":
    report()
