"""any-llm with its provider for OpenAI."""

from __future__ import annotations

import json

from any_llm import acompletion, completion
from operations import KEY, URL, WEATHER, expect, expect_cancel, get_weather, operation, report

PLACE = {"provider": "openai", "api_base": URL, "api_key": KEY}
HELLO = [{"role": "user", "content": "hi there"}]


@operation
def first_message() -> None:
    answer = completion(model="echo", messages=HELLO, **PLACE)
    expect(answer.choices[0].message.content == "hi there", answer)


@operation
def streaming() -> None:
    chunks = completion(model="echo", messages=HELLO, stream=True, **PLACE)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    expect("".join(pieces) == "hi there", pieces)


@operation
def tools() -> None:
    messages = [{"role": "user", "content": WEATHER}]
    answer = completion(model="weather", messages=messages, tools=[get_weather], **PLACE)
    call = answer.choices[0].message.tool_calls[0]
    expect(json.loads(call.function.arguments) == {"city": "Rome"}, call)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: acompletion(model="hang", messages=HELLO, **PLACE), "hang")


if __name__ == "__main__":
    report()
