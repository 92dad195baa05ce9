"""Mirascope with its provider for OpenAI."""

from __future__ import annotations

from mirascope import llm
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

llm.register_provider("openai", base_url=URL, api_key=KEY)


def build_model(name: str) -> llm.Model:
    return llm.Model(f"openai/{name}:completions")


@operation
def first_message() -> None:
    answer = build_model("echo").call("hi there")
    expect(answer.text() == "hi there", answer)


@operation
def streaming() -> None:
    pieces = list(build_model("echo").stream("hi there").text_stream())
    expect("".join(pieces).strip() == "hi there", pieces)


@operation
def tools() -> None:
    answer = build_model("weather").call(WEATHER, tools=[llm.tool(get_weather)])
    answer = answer.resume(answer.execute_tools())
    expect(SUNNY in answer.text(), answer)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_model("hang").call_async("x"), "hang")


if __name__ == "__main__":
    report()
