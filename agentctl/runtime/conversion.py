"""Conversion between neutral messages (`runtime.transcript`) and those of the model library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from agentctl.records.components import ToolRecord
from agentctl.records.ids import new_id
from agentctl.records.text import replace_unstorable
from agentctl.runtime.conversation import NOT_AN_OBJECT
from agentctl.runtime.history import complete_history
from agentctl.runtime.json_values import clean_json_value
from agentctl.runtime.transcript import MAXIMUM_TOKENS


def to_model_messages(messages: Iterable[Mapping[str, Any]]) -> list[ModelMessage]:
    """Convert messages of earlier runs.

    System messages are omitted: the current run has its own instructions. Every tool call gets a
    result, even if its run ended before, because providers reject a history with an open call.
    """
    return [_CONVERSIONS[message["role"]](message) for message in complete_history(messages)]


def clean_response(response: ModelResponse) -> None:
    """Clean an answer for storage, in place: the library sends it back together with the results.

    The arguments of a call become an object; any other value is stored under `NOT_AN_OBJECT`. The
    calls get different ids: some servers repeat one id, and a result belongs to one call.
    """
    ids: set[str] = set()
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            part.content = replace_unstorable(part.content)
        elif isinstance(part, ToolCallPart):
            part.tool_name = replace_unstorable(part.tool_name)
            part.tool_call_id = replace_unstorable(part.tool_call_id)
            if part.tool_call_id in ids:
                part.tool_call_id = new_id()
            ids.add(part.tool_call_id)
            part.args = parse_arguments(part.args)


def extract_calls(response: ModelResponse) -> list[dict[str, Any]]:
    """Return the tool calls of a cleaned answer: `id`, `name` and `arguments`."""
    return [
        {"id": part.tool_call_id, "name": part.tool_name, "arguments": part.args_as_dict()}
        for part in response.tool_calls
    ]


def parse_arguments(args: Any) -> dict[str, Any]:
    """Parse the arguments of the library: JSON text, a dictionary, or None."""
    raw = args if isinstance(args, dict) else replace_unstorable(args or "{}")
    try:
        value = json.loads(raw) if isinstance(raw, str) else raw
        if isinstance(value, dict):
            return {
                replace_unstorable(name): clean_json_value(item) for name, item in value.items()
            }
    except (ValueError, RecursionError):
        pass
    return {NOT_AN_OBJECT: str(raw)}


def extract_usage(usage: RequestUsage) -> dict[str, int]:
    """Return the nine counters of one model call so far, each from 0 to `MAXIMUM_TOKENS`."""
    audio_in, audio_out = usage.input_audio_tokens, usage.output_audio_tokens
    counters = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "audio_input_tokens": audio_in,
        "audio_output_tokens": audio_out,
        "audio_total_tokens": audio_in + audio_out,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.output_reasoning_tokens,
    }
    return {name: min(max(0, count), MAXIMUM_TOKENS) for name, count in counters.items()}


def build_tool_definition(tool: ToolRecord) -> ToolDefinition:
    """Build the definition of a tool for the model, with the same schema as its record."""
    return ToolDefinition(
        name=tool["name"],
        description=tool["description"],
        parameters_json_schema=tool["parameters"],
    )


def build_prompt(prompt: str, system: str) -> ModelRequest:
    """Build the prompt with the instructions of the model (`""` for none)."""
    return ModelRequest(parts=[UserPromptPart(prompt)], instructions=system or None)


def build_tool_results(
    calls: Iterable[Mapping[str, Any]], results: Iterable[str], system: str
) -> ModelRequest:
    """Build the results of the calls of an answer, in their order, with the same instructions."""
    parts = [
        ToolReturnPart(call["name"], result, tool_call_id=call["id"])
        for call, result in zip(calls, results, strict=True)
    ]
    return ModelRequest(parts=parts, instructions=system or None)


def _user_request(message: Mapping[str, Any]) -> ModelRequest:
    when = _timestamp(message)
    return ModelRequest(parts=[UserPromptPart(message["content"], timestamp=when)], timestamp=when)


def _assistant_response(message: Mapping[str, Any]) -> ModelResponse:
    text = [TextPart(message["content"])] if message["content"] else []
    calls = [
        ToolCallPart(call["name"], call["arguments"], tool_call_id=call["id"])
        for call in message.get("tool_calls", ())
    ]
    return ModelResponse(parts=[*text, *calls], timestamp=_timestamp(message))


def _tool_result(message: Mapping[str, Any]) -> ModelRequest:
    part = ToolReturnPart(
        message["tool_name"], message["content"], tool_call_id=message["tool_call_id"]
    )
    return ModelRequest(parts=[part], timestamp=_timestamp(message))


def _timestamp(message: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(message["created_at"], tz=UTC)


_CONVERSIONS: dict[str, Callable[[Mapping[str, Any]], ModelMessage]] = {
    "user": _user_request,
    "assistant": _assistant_response,
    "tool": _tool_result,
}
