"""Answers in the form of OpenAI's Responses API, plain and as a stream of events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.kit.model_server import Body


def build_response(role: str, message: Body, tokens: tuple[int, int]) -> Body:
    """Return the response for a message of chat completions, with its tokens in and out."""
    output: list[Body] = []
    if message["content"]:
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "content": [part]})
    for call in message.get("tool_calls", ()):
        named = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        identity = {"id": f"fc_{call['id']}", "call_id": call["id"]}
        output.append({"type": "function_call", **identity, **named})
    usage = {
        "input_tokens": tokens[0],
        "output_tokens": tokens[1],
        "total_tokens": sum(tokens),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": role}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    done = [{**item, "status": "completed"} for item in output]
    return {**head, **rest, "status": "completed", "output": done, "usage": usage}


def list_events(response: Body) -> Iterator[Body]:
    """Yield the events of a streamed response."""
    events = _list_events(response)
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _list_events(response: Body) -> Iterator[Body]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for index, item in enumerate(response["output"]):
        place: dict[str, Any] = {"output_index": index, "item_id": item["id"]}
        open_item = {**item, "status": "in_progress"}
        if item["type"] == "message":
            [part] = item["content"]
            added = {**open_item, "content": []}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            place["content_index"] = 0
            empty = {**part, "text": ""}
            yield {"type": "response.content_part.added", **place, "part": empty}
            for word in re.findall(r"\S+\s*|\s+", part["text"]):
                delta = {"delta": word, "logprobs": []}
                yield {"type": "response.output_text.delta", **place, **delta}
            text = {"text": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **place, **text}
            yield {"type": "response.content_part.done", **place, "part": part}
        else:
            added = {**open_item, "arguments": ""}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            kind = "response.function_call_arguments"
            arguments = item["arguments"]
            yield {"type": f"{kind}.delta", **place, "delta": arguments}
            named = {"arguments": arguments, "name": item["name"]}
            yield {"type": f"{kind}.done", **place, **named}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


def encode_event(event: Body) -> bytes:
    """Encode an event for a stream."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def count_words(body: Body) -> int:
    """Return the number of words of the input, which the stub counts as tokens."""
    return len(re.findall(r"\w+", json.dumps(body["input"])))
