"""Responses, other routes and the asynchronous client with OpenAI's library for Python."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from operations import ADMIN_KEY, due, expect, expect_error, operation, report, wait_for_status
from pydantic import BaseModel

client = OpenAI()
HELLO: Any = [{"role": "user", "content": "hello"}]
ADA = '{"name": "Ada", "age": 36}'


class Person(BaseModel):
    name: str
    age: int


def respond(asked: Any = "hello", model: str = "echo", **options: Any) -> Any:
    return client.responses.create(model=model, input=asked, **options)


def read_users(response: Any) -> list[str]:
    """Return the texts of users that the model of the agent `history` has received."""
    return [text for role, text in json.loads(response.output_text) if role == "user"]


@operation
def answer() -> None:
    response = respond()
    expect(response.output_text == "hello" and response.status == "completed")


@operation
def fields() -> None:
    response = respond()
    expect(response.id.startswith("resp_") and response.object == "response" and response.model)
    expect(response.output[0].type == "message" and response.error is None)


@operation
def usage() -> None:
    usage = respond().usage
    expect(usage.total_tokens == usage.input_tokens + usage.output_tokens)


@operation
def instructions() -> None:
    expect(read_users(respond(model="history", instructions="Be brief.")) == ["Be brief.", "hello"])


@operation
def messages() -> None:
    items = [*HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    expect(read_users(respond(items, model="history")) == ["hello", "more"])


@operation
def developer_message() -> None:
    items = [{"role": "developer", "content": "Be brief."}, *HELLO]
    expect(read_users(respond(items, model="history")) == ["Be brief.", "hello"])


@operation
def parts_of_text() -> None:
    expect(respond([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]))


@operation
def output_as_input() -> None:
    first = respond()
    items = [*HELLO, *first.output, {"role": "user", "content": "more"}]
    expect(read_users(respond(items, model="history")) == ["hello", "more"])


@operation
def after_previous() -> None:
    first = respond("one", model="history")
    second = respond("two", model="history", previous_response_id=first.id)
    expect(read_users(second) == ["one", "two"] and second.previous_response_id == first.id)


@operation
def of_a_conversation() -> None:
    respond("one", model="history", conversation="talk")
    expect(read_users(respond("two", model="history", conversation="talk")) == ["one", "two"])


@operation
def metadata() -> None:
    expect(respond(metadata={"topic": "demo"}).metadata == {"topic": "demo"})


@operation
def text_format() -> None:
    expect(respond(text={"format": {"type": "text"}}).output_text == "hello")


@operation
def schema() -> None:
    schema = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema()}
    expect(json.loads(respond(ADA, text={"format": schema}).output_text)["age"] == 36)


@operation
def parse() -> None:
    response = client.responses.parse(model="echo", input=ADA, text_format=Person)
    expect(response.output_parsed == Person(name="Ada", age=36))


@operation
def of_a_team() -> None:
    expect(respond("echo: hi", model="crew").output_text)


@operation
def stream() -> None:
    types = [event.type for event in respond("one two", stream=True)]
    expect(types[0] == "response.created" and types[-1] == "response.completed")
    expect("response.output_text.delta" in types, types)


@operation
def stream_helper() -> None:
    with client.responses.stream(model="echo", input="hello") as events:
        final = events.get_final_response()
    expect(final.output_text == "hello")


@operation
def stream_parsed() -> None:
    with client.responses.stream(model="echo", input=ADA, text_format=Person) as events:
        final = events.get_final_response()
    expect(final.output_parsed == Person(name="Ada", age=36))


@operation
def stream_closed() -> None:
    events = respond(model="trickle", stream=True, conversation="closed-response")
    next(iter(events))
    events.close()
    wait_for_status("closed-response", "CANCELLED")


# Stored responses


@operation
def stored_retrieve() -> None:
    expect(client.responses.retrieve(respond().id).output_text == "hello")


@operation
def stored_input_items() -> None:
    items = client.responses.input_items.list(respond().id)
    expect([item.content[0].text for item in items] == ["hello"])  # type: ignore[union-attr]


@operation
def stored_delete() -> None:
    response_id = respond().id
    client.responses.delete(response_id)
    with expect_error(openai.NotFoundError):
        client.responses.retrieve(response_id)


@operation
def stored_cancel() -> None:
    with respond(model="trickle", stream=True) as events:
        response_id = next(iter(events)).response.id
        cancelled = client.responses.cancel(response_id)
        expect(cancelled.status in ("cancelled", "in_progress"), cancelled.status)


@operation
def stored_fork_of_an_older_response() -> None:
    first = respond("one", model="history")
    respond("two", model="history", previous_response_id=first.id)
    fork = respond("three", model="history", previous_response_id=first.id)
    expect(read_users(fork) == ["one", "three"])


@operation
def stored_background() -> None:
    response = respond(background=True)
    deadline = time.monotonic() + 30
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.1)
        response = client.responses.retrieve(response.id)
    expect(response.output_text == "hello")


@operation
def stored_background_cancel() -> None:
    response = client.responses.cancel(respond(model="hang", background=True).id)
    deadline = time.monotonic() + 30
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.1)
        response = client.responses.retrieve(response.id)
    expect(response.status == "cancelled", response.status)


@operation
def log_probabilities() -> None:
    expect(respond(include=["message.output_text.logprobs"]))


# Settings


@operation
def setting_temperature() -> None:
    expect(respond(temperature=0.2, top_p=0.9).output_text == "hello")


@operation
def setting_max_output_tokens() -> None:
    expect(respond(max_output_tokens=500).output_text == "hello")


@operation
def setting_reasoning() -> None:
    expect(respond(reasoning={"effort": "low"}).output_text == "hello")


@operation
def setting_truncation() -> None:
    expect(respond(truncation="auto").output_text == "hello")


# Errors


@due
def error_unknown_response() -> None:
    with expect_error(openai.NotFoundError, "response_not_found"):
        client.responses.retrieve("resp_unknown")


@due
def error_unknown_previous() -> None:
    with expect_error(openai.BadRequestError, "previous_response_not_found"):
        respond(previous_response_id="resp_unknown")


@due
def error_unknown_model() -> None:
    with expect_error(openai.NotFoundError, "model_not_found"):
        respond(model="gpt-4o")


@due
def error_failing_model() -> None:
    with expect_error(openai.InternalServerError, "502"):
        respond(model="http-500")


@due
def error_response_of_another_user() -> None:
    with OpenAI(api_key=ADMIN_KEY) as other:
        response_id = other.responses.create(model="echo", input="secret").id
    with expect_error(openai.NotFoundError, "response_not_found"):
        client.responses.retrieve(response_id)


# Other routes


@operation
def other_embeddings() -> None:
    expect(client.embeddings.create(model="echo", input="hello"))


@operation
def other_completions() -> None:
    expect(client.completions.create(model="echo", prompt="hello"))


@operation
def other_moderations() -> None:
    expect(client.moderations.create(input="hello"))


@operation
def other_files() -> None:
    expect(client.files.create(file=("a.txt", b"hello"), purpose="assistants"))


# The asynchronous client


@operation
async def async_chat() -> None:
    async with AsyncOpenAI() as other:
        answer = await other.chat.completions.create(model="echo", messages=HELLO)
        expect(answer.choices[0].message.content == "hello")


@operation
async def async_stream() -> None:
    async with AsyncOpenAI() as other:
        chunks = await other.chat.completions.create(model="echo", messages=HELLO, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    expect("".join(texts) == "hello")


@operation
async def async_several_at_once() -> None:
    async with AsyncOpenAI() as other:
        answers = await asyncio.gather(
            *(other.responses.create(model="echo", input=f"number {n}") for n in range(8))
        )
    expect([answer.output_text for answer in answers] == [f"number {n}" for n in range(8)])


@operation
async def async_response_stream() -> None:
    other = AsyncOpenAI()
    async with other, other.responses.stream(model="echo", input="hello") as events:
        final = await events.get_final_response()
    expect(final.output_text == "hello")


@operation
async def async_cancelled_task() -> None:
    async with AsyncOpenAI() as other:
        request = other.responses.create(model="hang", input="hello", conversation="task")
        task = asyncio.create_task(request)
        await asyncio.to_thread(wait_for_status, "task", "RUNNING")
        task.cancel()
        await asyncio.to_thread(wait_for_status, "task", "CANCELLED")


if __name__ == "__main__":
    report()
