"""litellm's functions, with the provider `openai/`."""

from __future__ import annotations

import json
from typing import Any

import litellm
from operations import KEY, URL, due, expect, expect_error, operation, report
from pydantic import BaseModel

HELLO: Any = [{"role": "user", "content": "hello"}]
ADA = '{"name": "Ada", "age": 36}'
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
litellm.suppress_debug_info = True


class Person(BaseModel):
    name: str
    age: int


def complete(messages: Any = HELLO, model: str = "echo", **options: Any) -> Any:
    options = {"api_base": URL, "api_key": KEY} | options
    return litellm.completion(model=f"openai/{model}", messages=messages, **options)


@operation
def completion() -> None:
    answer = complete()
    expect(answer.choices[0].message.content == "hello" and answer.usage.total_tokens > 0)


@operation
def completion_stream() -> None:
    chunks = complete(stream=True, stream_options={"include_usage": True})
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello")


@operation
async def completion_async() -> None:
    answer = await litellm.acompletion(
        model="openai/echo", messages=HELLO, api_base=URL, api_key=KEY
    )
    expect(answer.choices[0].message.content == "hello")


@operation
async def completion_stream_async() -> None:
    chunks = await litellm.acompletion(
        model="openai/echo", messages=HELLO, api_base=URL, api_key=KEY, stream=True
    )
    texts = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    expect("".join(texts) == "hello")


@operation
def completion_history() -> None:
    first = complete().choices[0].message
    answer = complete([*HELLO, first, {"role": "user", "content": "more"}], "history")
    texts = [text for _, text in json.loads(answer.choices[0].message.content)]
    expect(texts[-3:] == ["hello", "hello", "more"], texts)


@operation
def completion_of_a_schema() -> None:
    answer = complete([{"role": "user", "content": ADA}], response_format=Person)
    expect(Person.model_validate_json(answer.choices[0].message.content).age == 36)


@operation
def response() -> None:
    found = litellm.responses(model="openai/echo", input="hello", api_base=URL, api_key=KEY)
    expect(found.output[0].content[0].text == "hello", found)


@operation
def setting_temperature() -> None:
    expect(complete(temperature=0).choices[0].message.content == "hello")


@operation
def setting_max_tokens() -> None:
    expect(complete(max_tokens=500).choices[0].message.content == "hello")


@operation
def tool_round() -> None:
    messages: Any = [{"role": "user", "content": 'What is the weather? {"city": "Paris"}'}]
    message = complete(messages, "weather", tools=[TOOL], tool_choice="auto").choices[0].message
    (call,) = message.tool_calls
    result = f"Sunny in {json.loads(call.function.arguments)['city']}"
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    answer = complete(messages, "weather", tools=[TOOL])
    expect(answer.choices[0].message.content == "Sunny in Paris", answer)


@operation
def system_message_alone() -> None:
    expect(complete([{"role": "system", "content": "Greet the user."}]))


@due
def wrong_key() -> None:
    with expect_error(litellm.AuthenticationError):
        complete(api_key="sk-wrong")


@due
def unknown_model() -> None:
    with expect_error(litellm.NotFoundError, "model does not exist"):
        complete(model="gpt-4o")


@due
def failing_model() -> None:
    with expect_error(litellm.BadGatewayError, "model is not available"):
        complete(model="http-500")


if __name__ == "__main__":
    report()
