"""LangChain's ChatOpenAI."""

from __future__ import annotations

import json
from typing import Any

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from operations import due, expect, expect_error, operation, report, wait_for_status
from pydantic import BaseModel

ADA = '{"name": "Ada", "age": 36}'
QUESTION = 'What is the weather? {"city": "Paris"}'


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"Sunny in {city}"


def execute_tools(model: Any) -> str:
    """Ask a question, execute the calls of the answer, and return the next answer."""
    bound = model.bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(QUESTION)]
    answer = bound.invoke(messages)
    expect(answer.tool_calls, answer)
    messages.append(answer)
    for call in answer.tool_calls:
        messages.append(get_weather.invoke(call))
    expect(isinstance(messages[-1], ToolMessage))
    return str(bound.invoke(messages).text)


@operation
def invoke() -> None:
    expect(ChatOpenAI(model="echo").invoke("hello").content == "hello")


@operation
def stream() -> None:
    pieces = [piece.content for piece in ChatOpenAI(model="echo").stream("one two")]
    expect("".join(pieces) == "one two")


@operation
async def invoke_async() -> None:
    expect((await ChatOpenAI(model="echo").ainvoke("hello")).content == "hello")


@operation
async def stream_async() -> None:
    pieces = [piece.content async for piece in ChatOpenAI(model="echo").astream("one two")]
    expect("".join(pieces) == "one two")


@operation
def batch() -> None:
    answers = ChatOpenAI(model="echo").batch(["one", "two"])
    expect([answer.content for answer in answers] == ["one", "two"])


@operation
def history() -> None:
    messages = [SystemMessage("Be brief."), HumanMessage("one"), AIMessage("two")]
    answer = ChatOpenAI(model="history").invoke([*messages, HumanMessage("three")])
    texts = [text for _, text in json.loads(answer.content)]
    expect(texts[-4:] == ["Be brief.", "one", "two", "three"], texts)


@operation
def usage() -> None:
    expect(ChatOpenAI(model="echo").invoke("hello").usage_metadata["total_tokens"] > 0)


@operation
def usage_of_a_stream() -> None:
    *_, last = ChatOpenAI(model="echo", stream_usage=True).stream("hello")
    expect(any(piece.usage_metadata for piece in [last, *_]))


@operation
def chain() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{word}")])
    answer = (prompt | ChatOpenAI(model="echo") | StrOutputParser()).invoke({"word": "hello"})
    expect(answer == "hello")


@operation
async def events() -> None:
    found = ChatOpenAI(model="echo").astream_events("hello", version="v2")
    expect("on_chat_model_end" in [event["event"] async for event in found])


@operation
def settings() -> None:
    expect(ChatOpenAI(model="echo", temperature=0, max_tokens=500).invoke("hello").content)


@operation
def structured_by_schema() -> None:
    model = ChatOpenAI(model="echo").with_structured_output(Person)
    expect(model.invoke(ADA) == Person(name="Ada", age=36))


@operation
def structured_by_json_mode() -> None:
    model = ChatOpenAI(model="echo").with_structured_output(Person, method="json_mode")
    expect(model.invoke(ADA) == Person(name="Ada", age=36))


@operation
def structured_by_function() -> None:
    model = ChatOpenAI(model="person").with_structured_output(Person, method="function_calling")
    expect(model.invoke(ADA) == Person(name="Ada", age=36))


@operation
def tools() -> None:
    expect(execute_tools(ChatOpenAI(model="weather")) == "Sunny in Paris")


@operation
def tools_streamed() -> None:
    model = ChatOpenAI(model="weather").bind_tools([get_weather])
    first, *rest = model.stream(QUESTION)
    for piece in rest:
        first += piece
    (call,) = first.tool_calls
    answer = model.invoke([HumanMessage(QUESTION), first, get_weather.invoke(call)])
    expect(answer.content == "Sunny in Paris", answer)


@operation
def responses() -> None:
    expect(ChatOpenAI(model="echo", use_responses_api=True).invoke("hello").text == "hello")


@operation
def responses_stream() -> None:
    pieces = ChatOpenAI(model="echo", use_responses_api=True).stream("one two")
    expect("".join(str(piece.text) for piece in pieces) == "one two")


@operation
def responses_tools() -> None:
    model = ChatOpenAI(model="weather", use_responses_api=True)
    expect(execute_tools(model) == "Sunny in Paris")


@operation
def closed_stream_cancels_the_run() -> None:
    model = ChatOpenAI(model="trickle", default_headers={"X-Session-ID": "langchain"})
    pieces = model.stream("hello")
    next(pieces)
    pieces.close()
    wait_for_status("langchain", "CANCELLED")


@due
def unknown_model() -> None:
    with expect_error(openai.NotFoundError, "model does not exist"):
        ChatOpenAI(model="gpt-4o").invoke("hello")


if __name__ == "__main__":
    report()
