"""aisuite with its provider for OpenAI."""

from __future__ import annotations

import aisuite
from operations import KEY, SUNNY, URL, WEATHER, expect, get_weather, operation, report

CLIENT = aisuite.Client({"openai": {"base_url": URL, "api_key": KEY}})
HELLO = [{"role": "user", "content": "hi there"}]


@operation
def first_message() -> None:
    answer = CLIENT.chat.completions.create(model="openai:echo", messages=HELLO)
    expect(answer.choices[0].message.content == "hi there", answer)


@operation
def streaming() -> None:
    chunks = CLIENT.chat.completions.create(model="openai:echo", messages=HELLO, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    expect("".join(pieces) == "hi there", pieces)


@operation
def tools() -> None:
    answer = CLIENT.chat.completions.create(
        model="openai:weather",
        messages=[{"role": "user", "content": WEATHER}],
        tools=[get_weather],
        max_turns=2,
    )
    expect(SUNNY in answer.choices[0].message.content, answer)


if __name__ == "__main__":
    report()
