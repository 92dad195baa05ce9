"""Tools of the caller with OpenAI's library for Python."""

from __future__ import annotations

import json
from typing import Any

import openai
from openai import OpenAI
from operations import due, expect, expect_error, operation, report
from pydantic import BaseModel

client = OpenAI()
QUESTION = 'What is the weather? {"city": "Paris"}'
FUNCTION: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
WEATHER: Any = {"type": "function", "function": FUNCTION}
WEATHER_OF_RESPONSES: Any = {"type": "function", **FUNCTION}


def get_weather(city: str) -> str:
    return f"Sunny in {city}"


def ask(messages: Any, model: str = "weather", **options: Any) -> Any:
    """Return the message of an answer."""
    options = {"tools": [WEATHER]} | options
    answer = client.chat.completions.create(model=model, messages=messages, **options)
    return answer.choices[0].message


def execute(message: Any) -> list[Any]:
    """Return a message with calls and the messages with their results."""
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": get_weather(**json.loads(call.function.arguments)),
        }
        for call in message.tool_calls
    ]
    return [message, *results]


def plan(*answers: tuple[str, dict[str, Any]] | list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the question that makes the model `plan` answer with these calls, in this order."""
    turns = [
        {
            "tool_calls": [
                {
                    "id": f"call_{number}_{index}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for index, (name, arguments) in enumerate(
                    calls if isinstance(calls, list) else [calls]
                )
            ]
        }
        for number, calls in enumerate(answers)
    ]
    return [{"role": "user", "content": json.dumps(turns)}]


def respond(asked: Any, model: str = "weather", **options: Any) -> Any:
    return client.responses.create(
        model=model, input=asked, **{"tools": [WEATHER_OF_RESPONSES]} | options
    )


# Chat completions


@operation
def chat_round() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="weather", messages=messages, tools=[WEATHER])
    expect(answer.choices[0].finish_reason == "tool_calls", answer)
    messages.append(answer.choices[0].message)
    for call in answer.choices[0].message.tool_calls or []:
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model="weather", messages=messages, tools=[WEATHER])
    expect(answer.choices[0].message.content == "Sunny in Paris", answer)


@operation
def chat_round_streamed() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    with client.chat.completions.stream(
        model="weather", messages=messages, tools=[WEATHER]
    ) as events:
        message = events.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    result = get_weather(**json.loads(call.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    chunks = client.chat.completions.create(
        model="weather", messages=messages, tools=[WEATHER], stream=True
    )
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Sunny in Paris")


@operation
def chat_calls_in_parallel() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="pair", messages=messages, tools=[WEATHER])
    message = answer.choices[0].message
    expect(len(message.tool_calls or []) == 2, answer)
    messages.append(message)
    for number, call in enumerate(message.tool_calls or []):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{number}"})
    answer = client.chat.completions.create(model="pair", messages=messages, tools=[WEATHER])
    expect(answer.choices[0].message.content == "0 | 1", answer)


@operation
def chat_choice_of_a_function() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(
        model="weather", messages=messages, tools=[WEATHER], tool_choice=choice
    )
    (call,) = answer.choices[0].message.tool_calls or []
    expect(json.loads(call.function.arguments) == {"city": "Paris"}, answer)


@operation
def chat_choice_none() -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    expect(ask(messages, "echo", tool_choice="none").content == "hello")


@operation
def chat_not_called() -> None:
    expect(ask([{"role": "user", "content": "hello"}], "echo").content == "hello")


@operation
def chat_of_a_pydantic_model() -> None:
    class get_weather(BaseModel):  # noqa: N801
        city: str

    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.parse(
        model="weather", messages=messages, tools=[openai.pydantic_function_tool(get_weather)]
    )
    (call,) = answer.choices[0].message.tool_calls or []
    expect(call.function.parsed_arguments == get_weather(city="Paris"), answer)


@operation
def chat_two_rounds() -> None:
    messages = plan(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}))
    messages += execute(ask(messages, "plan"))
    messages += execute(ask(messages, "plan"))
    answer = ask(messages, "plan")
    expect(answer.content == "Sunny in Rome", answer)


@operation
def chat_next_to_tools_of_the_agent() -> None:
    calls = [("add", {"a": 2, "b": 3}), ("get_weather", {"city": "Paris"})]
    messages = plan(calls)
    first = ask(messages, "adder")
    expect([call.function.name for call in first.tool_calls] == ["get_weather"], first)
    answer = ask([*messages, *execute(first)], "adder")
    expect("Sunny in Paris" in answer.content, answer)


@operation
def chat_after_a_round() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    messages += execute(ask(messages))
    messages.append(ask(messages))
    messages.append({"role": "user", "content": 'And there? {"city": "Rome"}'})
    messages += execute(ask(messages))
    answer = ask(messages)
    expect(answer.content == "Sunny in Rome", answer)


@operation
def chat_in_a_session() -> None:
    options = {"extra_headers": {"X-Session-ID": "tools-of-chat"}}
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = ask([*messages, *execute(ask(messages, **options))], **options)
    expect(answer.content == "Sunny in Paris", answer)


@operation
def chat_result_in_parts() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    message, result = execute(ask(messages))
    result["content"] = [{"type": "text", "text": "Sunny"}]
    expect(ask([*messages, message, result]).content == "Sunny")


@operation
def chat_question_instead_of_a_result() -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    ask(messages)
    expect(ask([{"role": "user", "content": "hello"}], "echo").content == "hello")


@due
def chat_result_of_no_call() -> None:
    result = {"role": "tool", "tool_call_id": "call_unknown", "content": "Sunny"}
    with expect_error(openai.BadRequestError, "messages"):
        ask([{"role": "user", "content": QUESTION}, result])


@due
def chat_invalid_schema() -> None:
    tool = {"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}
    with expect_error(openai.BadRequestError, "tools"):
        ask([{"role": "user", "content": "hello"}], "echo", tools=[tool])


# Responses


@operation
def response_round_with_previous() -> None:
    first = respond(QUESTION)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = f"Sunny in {json.loads(call.arguments)['city']}"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    second = respond([output], previous_response_id=first.id)
    expect(second.output_text == "Sunny in Paris", second)


@operation
def response_round_with_items() -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    first = respond(items)
    items += first.output
    for call in [item for item in first.output if item.type == "function_call"]:
        result = f"Sunny in {json.loads(call.arguments)['city']}"
        output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        items.append(output)
    expect(respond(items).output_text == "Sunny in Paris")


@operation
def response_round_streamed() -> None:
    with client.responses.stream(
        model="weather", input=QUESTION, tools=[WEATHER_OF_RESPONSES]
    ) as events:
        seen = list(events)
        first = events.get_final_response()
    expect("response.function_call_arguments.done" in [event.type for event in seen])
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    second = respond([output], previous_response_id=first.id)
    expect(second.output_text == "Sunny", second)


@operation
def response_parallel_calls() -> None:
    first = respond(QUESTION, "pair")
    calls = [item for item in first.output if item.type == "function_call"]
    expect(len(calls) == 2, first)
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": str(number)}
        for number, call in enumerate(calls)
    ]
    second = respond(outputs, "pair", previous_response_id=first.id)
    expect(second.output_text == "0 | 1", second)


if __name__ == "__main__":
    report()
