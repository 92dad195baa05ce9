"""crewAI with its model for OpenAI."""

from __future__ import annotations

from crewai import LLM, Agent
from crewai.tools import tool
from operations import KEY, SUNNY, URL, WEATHER, expect, get_weather, operation, report


def build_model(name: str, *, stream: bool = False) -> LLM:
    return LLM(model=f"openai/{name}", base_url=URL, api_key=KEY, stream=stream)


@operation
def first_message() -> None:
    answer = build_model("echo").call("hi there")
    expect(answer == "hi there", answer)


@operation
def streaming() -> None:
    answer = build_model("echo", stream=True).call("hi there")
    expect(answer == "hi there", answer)


@operation
def tools() -> None:
    agent = Agent(
        role="helper",
        goal="Answer",
        backstory="You know the weather.",
        llm=build_model("weather"),
        tools=[tool("get_weather")(get_weather)],
    )
    answer = agent.kickoff(WEATHER)
    expect(SUNNY in answer.raw, answer)


if __name__ == "__main__":
    report()
