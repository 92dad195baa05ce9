"""The libraries of the vendors read the golden pages of the faces.

Their own clients do so in `tests/ai_sdk/test_ai_sdk.py` and in `make compat`.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from mcp import types
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, ValidationError

from tests.interop.faces import read_streams

RESPONSE_EVENTS: dict[str, Any] = {
    get_args(event.model_fields["type"].annotation)[0]: event
    for event in get_args(get_args(ResponseStreamEvent)[0])
}
"""The classes of the events of a response, by their types."""

DIFFERENCES = {("response", "error", "code"): "the code of an error of agentctl"}
"""Members of events that are not as OpenAI's library declares them. It reads them anyway."""


def parse_events(text: str) -> list[dict[str, Any]]:
    """Return the data of the events of a stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def validate(model: Any, document: dict[str, Any]) -> None:
    """Check that a class of a library reads a document, except for the differences."""
    problems: list[Any] = []
    try:
        model.model_validate(document, strict=True)
    except ValidationError as error:
        problems += error.errors()
    assert [problem for problem in problems if problem["loc"] not in DIFFERENCES] == []


@pytest.mark.parametrize("name", read_streams("chat"))
def test_openai_reads_chat_completions(name: str) -> None:
    for title, text in read_streams("chat")[name]:
        is_stream = title.endswith("stream")
        for document in parse_events(text) if is_stream else [json.loads(text)]:
            if "error" not in document:
                validate(ChatCompletionChunk if is_stream else ChatCompletion, document)


@pytest.mark.parametrize("name", read_streams("responses"))
def test_openai_reads_responses(name: str) -> None:
    for title, text in read_streams("responses")[name]:
        if title.endswith("stream"):
            for event in parse_events(text):
                validate(RESPONSE_EVENTS[event["type"]], event)
        elif "object" in json.loads(text):
            validate(ResponseDocument, {"response": json.loads(text)})


class ResponseDocument(BaseModel):
    """A document that is a response."""

    response: Response


@pytest.mark.parametrize("name", read_streams("mcp"))
def test_mcp_reads_results_and_questions(name: str) -> None:
    for title, text in read_streams("mcp")[name]:
        match title:
            case "its progress":
                continue
            case "a call" | "a call of a client that asks its user":
                *questions, last = parse_events(text)
                for question in questions:
                    types.ElicitRequest.model_validate(question)
                types.CallToolResult.model_validate(last["result"])
            case "the same without a session":
                types.InputRequiredResult.model_validate(json.loads(text))
            case _:
                types.CallToolResult.model_validate(json.loads(text))
