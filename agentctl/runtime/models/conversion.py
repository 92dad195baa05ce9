"""Conversion between neutral messages (`runtime.transcript`) and those of the model library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage, RunUsage

from agentctl.runtime.transcript import MAXIMUM_TOKENS, complete_history

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.models.calls import ModelCall, ModelConnection, NativeMessage


def to_model_messages(messages: Iterable[Mapping[str, Any]]) -> list[ModelMessage]:
    """Convert messages of earlier runs.

    System messages are omitted: the current run has its own instructions. Every tool call gets a
    result, even if its run ended before, because providers reject a history with an open call.
    """
    return [_CONVERSIONS[message["role"]](message) for message in complete_history(messages)]


def extract_usage(usage: RequestUsage) -> dict[str, int]:
    """Return the nine counters of one model call so far, each from 0 to `MAXIMUM_TOKENS`."""
    counters = extract_run_usage(usage)
    return {name: min(max(0, count), MAXIMUM_TOKENS) for name, count in counters.items()}


def extract_run_usage(usage: RequestUsage | RunUsage) -> dict[str, int]:
    """Return the nine counters of a call or of a run of the library."""
    audio_in, audio_out = usage.input_audio_tokens, usage.output_audio_tokens
    return {
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


def build_tool_definition(tool: ToolRecord) -> ToolDefinition:
    """Build the definition of a tool for the model, with the same schema as its record."""
    return ToolDefinition(
        name=tool["name"],
        description=tool["description"],
        parameters_json_schema=tool["parameters"],
    )


def build_request(call: ModelCall, connection: ModelConnection) -> list[ModelMessage]:
    """Build the messages of a call, with the instructions in the last one.

    Args:
        connection: the connection that sends them: it gets its own earlier answers unchanged.
    """
    messages: list[ModelMessage] = []
    results: list[ToolReturnPart] = []
    for message in call.messages:
        if message["role"] == "tool":
            results.append(_tool_result(message))
            continue
        messages += _join_results(results)
        native: NativeMessage | None = message.get("native")
        if native is not None and native.connection is connection:
            messages.append(native.value)
        else:
            messages.append(_CONVERSIONS[message["role"]](message))
    messages += _join_results(results)
    last = messages[-1]
    if isinstance(last, ModelRequest):
        messages[-1] = replace(last, instructions=call.instructions or None)
    return messages


def _join_results(results: list[ToolReturnPart]) -> list[ModelMessage]:
    joined = [ModelRequest(parts=[*results])] if results else []
    results.clear()
    return [*joined]


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


def _tool_result(message: Mapping[str, Any]) -> ToolReturnPart:
    return ToolReturnPart(
        message["tool_name"], message["content"], tool_call_id=message["tool_call_id"]
    )


def _timestamp(message: Mapping[str, Any]) -> datetime:
    created_at = message.get("created_at")
    return datetime.now(UTC) if created_at is None else datetime.fromtimestamp(created_at, tz=UTC)


_CONVERSIONS: dict[str, Callable[[Mapping[str, Any]], ModelMessage]] = {
    "user": _user_request,
    "assistant": _assistant_response,
    "tool": lambda message: ModelRequest(
        parts=[_tool_result(message)], timestamp=_timestamp(message)
    ),
}
