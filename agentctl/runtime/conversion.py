"""Neutral messages (`runtime.messages`) as the model library's, and its counters as ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

from agentctl.runtime.transcript import CANCELLED_RESULT

__all__ = ["counters", "to_model"]


def to_model(messages: Iterable[Mapping[str, Any]]) -> list[ModelMessage]:
    """Messages of earlier runs, for the model.

    Instructions are left out: those of the present run hold. Every tool call gets a result, also
    when its run ended before there was one, since providers refuse a history with an open call.
    """
    converted: list[ModelMessage] = []
    open_calls: dict[str, str] = {}
    for message in messages:
        role = message["role"]
        if role == "tool":
            if open_calls.pop(message["tool_call_id"], None) is not None:
                converted.append(_result(message))
            continue
        converted.extend(_interrupted(open_calls))
        open_calls = {}
        if role == "user":
            converted.append(_request(message))
        elif role == "assistant":
            converted.append(_response(message))
            open_calls = {call["id"]: call["name"] for call in message.get("tool_calls", ())}
    return [*converted, *_interrupted(open_calls)]


def counters(after: RunUsage, before: RunUsage) -> dict[str, int]:
    """The nine counters of what was used between two states of a run's usage."""

    def spent(name: str) -> int:
        return int(getattr(after, name)) - int(getattr(before, name))

    input_tokens, output_tokens = spent("input_tokens"), spent("output_tokens")
    audio_in, audio_out = spent("input_audio_tokens"), spent("output_audio_tokens")
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "audio_input_tokens": audio_in,
        "audio_output_tokens": audio_out,
        "audio_total_tokens": audio_in + audio_out,
        "cache_read_tokens": spent("cache_read_tokens"),
        "cache_write_tokens": spent("cache_write_tokens"),
        "reasoning_tokens": spent("output_reasoning_tokens"),
    }


def _request(message: Mapping[str, Any]) -> ModelRequest:
    when = _time(message)
    return ModelRequest(parts=[UserPromptPart(message["content"], timestamp=when)], timestamp=when)


def _response(message: Mapping[str, Any]) -> ModelResponse:
    text = [TextPart(message["content"])] if message["content"] else []
    calls = [
        ToolCallPart(call["name"], call["arguments"], tool_call_id=call["id"])
        for call in message.get("tool_calls", ())
    ]
    return ModelResponse(parts=[*text, *calls], timestamp=_time(message))


def _result(message: Mapping[str, Any]) -> ModelRequest:
    part = ToolReturnPart(
        message["tool_name"], message["content"], tool_call_id=message["tool_call_id"]
    )
    return ModelRequest(parts=[part], timestamp=_time(message))


def _interrupted(open_calls: Mapping[str, str]) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[ToolReturnPart(name, CANCELLED_RESULT, tool_call_id=call_id)])
        for call_id, name in open_calls.items()
    ]


def _time(message: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(message["created_at"], tz=UTC)
