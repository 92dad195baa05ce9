"""Responses of a hostile or broken provider, for the model `script` of `tests.kit.model`."""

from __future__ import annotations

import json
from typing import Any

Script = dict[str, Any]


def encode_event(data: object) -> str:
    """Encode an event of a stream: a JSON value, or its text."""
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def build_chunk(delta: object, finish_reason: str | None = None, **fields: object) -> Script:
    """Build an event of the OpenAI format with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "x", "created": 1, "model": "script", "choices": [choice], **fields}


def build_call(
    arguments: str, *, name: str | None = "add", index: int = 0, call_id: str | None = "c0"
) -> Script:
    """Build the delta of a tool call."""
    call = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [call]}


def script(*events: object, **options: Any) -> str:
    """Return the message that makes the model answer with these events.

    Args:
        events: JSON objects, each of which is an event; raw text; pairs of a raw text and a number
            of repetitions; or objects with raw bytes in `hex`.
        options: see the behaviour `script` in `tests.kit.model_server`.
    """
    pieces = [
        encode_event(event) if isinstance(event, dict) and "hex" not in event else event
        for event in events
    ]
    return json.dumps({"headers": {}, "pieces": pieces, **options})
