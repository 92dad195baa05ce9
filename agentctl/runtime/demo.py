"""Models without a network: `echo`, `slow`, `leader` and `tool` of the provider `demo`.

They are deterministic, stream like other models, and count one token for each word.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RequestUsage

from agentctl.errors import InvalidConfiguration
from agentctl.records.ids import new_id
from agentctl.runtime.delegation import DELEGATE, ROUTE

SLOW_WORDS = 200
SLOW_SECONDS = 0.3
"""`slow` answers with this number of words, one after each pause of `SLOW_SECONDS`: a minute."""

_CHUNKS = 4
"""Number of pieces of an answer of `echo`."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call as a piece of an answer."""

    tool_name: str
    arguments: dict[str, Any]


Piece = str | _Call
Answer = AsyncIterator[Piece]
AnswerGenerator = Callable[[Sequence[ModelMessage], Sequence[ToolDefinition]], Answer]


def build_demo_model(name: str) -> Model:
    """Build the demo model with this name.

    Raises:
        InvalidConfiguration: there is no such model.
    """
    speaker = _GENERATORS.get(name)
    if speaker is None:
        raise InvalidConfiguration(
            f"The provider demo has no model {name!r}", hint=f"use one of: {', '.join(_GENERATORS)}"
        )
    return _DemoModel(name, speaker)


async def _echo(messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]) -> Answer:
    """Answer with the user's message."""
    for chunk in _split_text(_last_text(messages, UserPromptPart)):
        await asyncio.sleep(0)
        yield chunk


async def _slow(messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]) -> Answer:
    """Answer with the words of the user's message, repeated for about a minute."""
    words = _last_text(messages, UserPromptPart).split() or ["slow"]
    for number in range(SLOW_WORDS):
        yield words[number % len(words)] + " "
        await asyncio.sleep(SLOW_SECONDS)


async def _leader(messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]) -> Answer:
    """Delegate the message to the first member and answer with its result; alone, echo it."""
    delegation = next((tool for tool in tools if tool.name in (DELEGATE, ROUTE)), None)
    answer = _last_text(messages, ToolReturnPart) if _ends_with_tool_result(messages) else None
    if delegation is None or answer is not None:
        for chunk in _split_text(
            _last_text(messages, UserPromptPart) if answer is None else answer
        ):
            await asyncio.sleep(0)
            yield chunk
        return
    properties = delegation.parameters_json_schema["properties"]
    arguments = {"member_id": properties["member_id"]["enum"][0]}
    if "task" in properties:
        arguments["task"] = _last_text(messages, UserPromptPart)
    yield _Call(delegation.name, arguments)


async def _tool(messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]) -> Answer:
    """Call the tool that the message names, else the first one, and answer with its result.

    The message is the value of each required text, and its first number, or 1, that of each
    required number. Without a tool, echo the message.
    """
    message = _last_text(messages, UserPromptPart)
    if _ends_with_tool_result(messages):
        yield _last_text(messages, ToolReturnPart)
        return
    if not tools:
        yield message
        return
    tool = next((each for each in tools if each.name in message), tools[0])
    schema = tool.parameters_json_schema
    properties, number = schema.get("properties", {}), re.search(r"\d+", message)
    values = {
        "string": message,
        **dict.fromkeys(("integer", "number"), int(number[0]) if number else 1),
    }
    arguments = {
        name: values.get(properties[name].get("type")) for name in schema.get("required", ())
    }
    yield _Call(tool.name, {name: value for name, value in arguments.items() if value is not None})


_GENERATORS: dict[str, AnswerGenerator] = {
    "echo": _echo,
    "slow": _slow,
    "leader": _leader,
    "tool": _tool,
}


class _DemoModel(Model):
    """A model whose answers come from a function."""

    def __init__(self, name: str, speaker: AnswerGenerator) -> None:
        super().__init__()
        self._name = name
        self._speaker = speaker

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return "demo"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self.request_stream(
            messages, model_settings, model_request_parameters
        ) as response:
            async for _ in response:
                pass
        return response.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        pieces = self._speaker(messages, model_request_parameters.function_tools)
        yield _DemoResponse(
            model_request_parameters=model_request_parameters,
            name=self._name,
            pieces=pieces,
            prompt_words=sum(map(_count_words, _prompt_texts(messages))),
        )


@dataclass
class _DemoResponse(StreamedResponse):
    """The stream of one answer.

    Attributes:
        prompt_words: number of words in the prompt.
    """

    name: str
    pieces: Answer
    prompt_words: int
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        self._usage = RequestUsage(input_tokens=self.prompt_words)
        async for piece in self.pieces:
            self.finish_reason = "stop" if isinstance(piece, str) else "tool_call"
            for event in self._events(piece):
                yield event
        self.finish_reason = self.finish_reason or "stop"

    def _events(self, piece: Piece) -> list[ModelResponseStreamEvent]:
        if isinstance(piece, str):
            self._usage += RequestUsage(output_tokens=_count_words(piece))
            return [*self._parts_manager.handle_text_delta(vendor_part_id="text", content=piece)]
        text = json.dumps(piece.arguments)
        self._usage += RequestUsage(output_tokens=_count_words(text))
        return [
            *self._parts_manager.handle_tool_call_delta_events(
                vendor_part_id="call", tool_name=piece.tool_name, args=text, tool_call_id=new_id()
            )
        ]

    async def close_stream(self) -> None:
        """Do nothing: there is no connection."""

    @property
    def model_name(self) -> str:
        return self.name

    @property
    def provider_name(self) -> str:
        return "demo"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.started


def _message_parts(messages: Sequence[ModelMessage]) -> list[Any]:
    return [part for message in messages for part in message.parts]


def _last_text(messages: Sequence[ModelMessage], kind: type[Any]) -> str:
    """Return the text of the last part of a kind, `""` if there is none."""
    texts = [part.content for part in _message_parts(messages) if isinstance(part, kind)]
    return str(texts[-1]) if texts else ""


def _ends_with_tool_result(messages: Sequence[ModelMessage]) -> bool:
    """Return True if the last request to the model has the result of a tool."""
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    return bool(requests) and any(isinstance(part, ToolReturnPart) for part in requests[-1].parts)


def _prompt_texts(messages: Sequence[ModelMessage]) -> list[str]:
    instructions = [
        message.instructions or "" for message in messages[-1:] if isinstance(message, ModelRequest)
    ]
    return [
        *instructions,
        *(str(getattr(part, "content", "")) for part in _message_parts(messages)),
    ]


def _count_words(text: str) -> int:
    """Count the words of a text; each is one token."""
    return len(text.split())


def _split_text(text: str) -> list[str]:
    """Split a text into a few pieces, each of whole words with the white space after them."""
    words = re.findall(r"\S+\s*|\s+", text)
    size = max(1, -(-len(words) // _CHUNKS))
    return ["".join(words[start : start + size]) for start in range(0, len(words), size)]
