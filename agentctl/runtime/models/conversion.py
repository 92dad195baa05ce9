"""Conversion between neutral messages (`runtime.transcript.transcript`) and those of the model
library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.usage import UsageBase

from agentctl.runtime.files import LoadedFile, load_files
from agentctl.runtime.models.calls import ModelCall, ModelConnection, NativeMessage, build_usage
from agentctl.runtime.transcript.history import complete_history


def to_model_messages(messages: Iterable[Mapping[str, Any]]) -> list[ModelMessage]:
    """Convert messages of earlier runs.

    System messages are omitted: the current run has its own instructions. Every tool call gets a
    result, even if its run ended before, because providers reject a history with an open call.
    """
    return [_convert(message) for message in complete_history(messages)]


def extract_usage(usage: UsageBase) -> dict[str, int]:
    """Return the nine counters of a model call or of a run."""
    return build_usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        audio_input_tokens=usage.input_audio_tokens,
        audio_output_tokens=usage.output_audio_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
    )


async def build_request(call: ModelCall, connection: ModelConnection) -> list[ModelMessage]:
    """Build the messages of a call, with the instructions in the last one and all of its files.

    Args:
        connection: the connection that sends them: it gets its own earlier answers unchanged.
    """
    messages: list[ModelMessage] = []
    results: list[ToolReturnPart] = []

    for message in await load_files(call.messages, call.files, connection.takes):
        if message["role"] == "tool":
            results.append(_tool_result(message))
            continue

        messages += _join_results(results)

        native: NativeMessage | None = message.get("native")
        if native is not None and native.connection is connection:
            messages.append(native.value)
        else:
            messages.append(_convert(message))

    messages += _join_results(results)

    last = messages[-1]
    if isinstance(last, ModelRequest):
        messages[-1] = replace(last, instructions=call.instructions or None)

    return messages


def _join_results(results: list[ToolReturnPart]) -> list[ModelMessage]:
    joined = [ModelRequest(parts=[*results])] if results else []
    results.clear()
    return [*joined]


def _convert(message: Mapping[str, Any]) -> ModelMessage:
    created_at = message.get("created_at")
    content = message["content"]
    when = datetime.now(UTC) if created_at is None else datetime.fromtimestamp(created_at, tz=UTC)

    if message["role"] == "user":
        prompt = UserPromptPart(build_prompt(message), timestamp=when)
        return ModelRequest(parts=[prompt], timestamp=when)

    if message["role"] == "tool":
        return ModelRequest(parts=[_tool_result(message)], timestamp=when)

    text = [TextPart(content)] if content else []
    calls = [
        ToolCallPart(call["name"], call["arguments"], tool_call_id=call["id"])
        for call in message.get("tool_calls", ())
    ]

    return ModelResponse(parts=[*text, *calls], timestamp=when)


def build_prompt(message: Mapping[str, Any]) -> str | list[UserContent]:
    """Return a message of the user with its loaded files in the form of the library."""
    text: str = message["content"]
    files: Iterable[LoadedFile] = message.get("files", ())
    parts = [BinaryContent(file.data, media_type=file.reference.media_type) for file in files]
    return [*filter(None, [text]), *parts] if parts else text


def _tool_result(message: Mapping[str, Any]) -> ToolReturnPart:
    return ToolReturnPart(
        message["tool_name"], message["content"], tool_call_id=message["tool_call_id"]
    )
