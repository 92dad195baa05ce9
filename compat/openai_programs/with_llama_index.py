"""LlamaIndex, its model for endpoints of other vendors and its agent."""

from __future__ import annotations

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
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


def build_model(name: str) -> OpenAILike:
    return OpenAILike(
        model=name, api_base=URL, api_key=KEY, is_chat_model=True, is_function_calling_model=True
    )


HELLO = [ChatMessage(role="user", content="hi there")]


@operation
def first_message() -> None:
    answer = build_model("echo").chat(HELLO)
    expect(answer.message.content == "hi there", answer)


@operation
def streaming() -> None:
    pieces = [piece.delta for piece in build_model("echo").stream_chat(HELLO)]
    expect("".join(filter(None, pieces)) == "hi there", pieces)
    expect(len(pieces) > 1, pieces)


@operation
async def tools() -> None:
    answer = await FunctionAgent(tools=[get_weather], llm=build_model("weather")).run(WEATHER)
    expect(SUNNY in str(answer), answer)


@operation
async def cancel() -> None:
    async def ask() -> None:
        async for _ in await build_model("trickle").astream_chat(HELLO):
            pass

    await expect_cancel(ask)


if __name__ == "__main__":
    report()
