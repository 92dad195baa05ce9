"""AutoGen, its client and its agent."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
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

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
)


def build_client(name: str) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model=name, base_url=URL, api_key=KEY, model_info=INFO)


HELLO = [UserMessage(content="hi there", source="user")]


@operation
async def first_message() -> None:
    answer = await build_client("echo").create(HELLO)
    expect(answer.content == "hi there", answer)


@operation
async def streaming() -> None:
    pieces = [piece async for piece in build_client("echo").create_stream(HELLO)]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    expect("".join(texts) == "hi there", pieces)


@operation
async def tools() -> None:
    agent = AssistantAgent("helper", build_client("weather"), tools=[get_weather])
    answer = await agent.run(task=WEATHER)
    expect(SUNNY in answer.messages[-1].content, answer)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_client("hang").create(HELLO), "hang")


if __name__ == "__main__":
    report()
