"""Google ADK with its model for LiteLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
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


async def ask(name: str, text: str, mode: StreamingMode = StreamingMode.NONE) -> AsyncIterator[Any]:
    model = LiteLlm(model=f"openai/{name}", api_base=URL, api_key=KEY)
    runner = InMemoryRunner(LlmAgent(name="helper", model=model, tools=[get_weather]))
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="ada")
    message = types.Content(role="user", parts=[types.Part(text=text)])
    config = RunConfig(streaming_mode=mode)
    async for event in runner.run_async(
        user_id="ada", session_id=session.id, new_message=message, run_config=config
    ):
        yield event


def find_text(event: Any) -> str:
    return "".join(part.text or "" for part in event.content.parts)


@operation
async def first_message() -> None:
    events = [event async for event in ask("echo", "hi there")]
    expect(find_text(events[-1]) == "hi there", events)


@operation
async def streaming() -> None:
    events = [event async for event in ask("echo", "hi there", StreamingMode.SSE)]
    pieces = [find_text(event) for event in events if event.partial]
    expect("".join(pieces) == "hi there", events)


@operation
async def tools() -> None:
    events = [event async for event in ask("weather", WEATHER)]
    expect(SUNNY in find_text(events[-1]), events)


@operation
async def cancel() -> None:
    async def read() -> None:
        async for _ in ask("hang", "x"):
            pass

    await expect_cancel(read, "hang")


if __name__ == "__main__":
    report()
