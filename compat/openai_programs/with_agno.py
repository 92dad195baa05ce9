"""agno with its model for endpoints of other vendors."""

from __future__ import annotations

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
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


def build_agent(name: str) -> Agent:
    model = OpenAILike(id=name, base_url=URL, api_key=KEY)
    return Agent(model=model, tools=[get_weather], telemetry=False)


@operation
def first_message() -> None:
    answer = build_agent("echo").run("hi there")
    expect(answer.content == "hi there", answer.content)


@operation
def streaming() -> None:
    events = list(build_agent("echo").run("hi there", stream=True))
    pieces = [event.content for event in events if event.event == "RunContent"]
    expect("".join(pieces) == "hi there", pieces)


@operation
def tools() -> None:
    answer = build_agent("weather").run(WEATHER)
    expect(SUNNY in answer.content, answer.content)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_agent("hang").arun("x"), "hang")


if __name__ == "__main__":
    report()
