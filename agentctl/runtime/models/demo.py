"""Models without a network: `echo`, `slow`, `leader` and `tool` of the provider `demo`.

They are deterministic, stream like other models, and count one token for each word.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentctl.errors import InvalidConfiguration
from agentctl.records.ids import new_id
from agentctl.records.items import DELEGATIONS
from agentctl.runtime.models.calls import (
    ModelAnswer,
    ModelCall,
    ModelConnection,
    build_usage,
    clean_calls,
)

if TYPE_CHECKING:
    from agentctl.runtime.models.calls import AnswerSink

SLOW_WORDS = 200
SLOW_SECONDS = 0.3
"""`slow` answers with this number of words, one after each pause of `SLOW_SECONDS`: a minute."""

_CHUNKS = 4
"""Number of pieces of an answer of `echo`."""

Answer = AsyncIterator[str | tuple[str, dict[str, Any]]]
"""Pieces of text, and tool calls by name and arguments."""


async def _echo(call: ModelCall) -> Answer:
    for chunk in _split_text(_last_text(call, "user")):
        await asyncio.sleep(0)
        yield chunk


async def _slow(call: ModelCall) -> Answer:
    words = _last_text(call, "user").split() or ["slow"]
    for number in range(SLOW_WORDS):
        yield words[number % len(words)] + " "
        await asyncio.sleep(SLOW_SECONDS)


async def _leader(call: ModelCall) -> Answer:
    delegation = next((tool for tool in call.tools if tool["name"] in DELEGATIONS), None)
    answer = _last_text(call, "tool") if _ends_with_tool_result(call) else None
    if delegation is None or answer is not None:
        for chunk in _split_text(_last_text(call, "user") if answer is None else answer):
            await asyncio.sleep(0)
            yield chunk
        return
    properties = delegation["parameters"]["properties"]
    arguments = {"member_id": properties["member_id"]["enum"][0]}
    if "task" in properties:
        arguments["task"] = _last_text(call, "user")
    yield delegation["name"], arguments


async def _tool(call: ModelCall) -> Answer:
    """Call the tool that the message names, else the first one, and answer with its result.

    The message is the value of each required text, and its first number, or 1, that of each
    required number. Without a tool, echo the message.
    """
    message = _last_text(call, "user")
    if _ends_with_tool_result(call):
        yield _last_text(call, "tool")
        return
    if not call.tools:
        yield message
        return
    tool = next((tool for tool in call.tools if tool["name"] in message), call.tools[0])
    schema: Mapping[str, Any] = tool["parameters"]
    properties, number = schema.get("properties", {}), re.search(r"\d+", message)
    values = {
        "string": message,
        **dict.fromkeys(("integer", "number"), int(number[0]) if number else 1),
    }
    arguments = {
        name: values.get(properties[name].get("type")) for name in schema.get("required", ())
    }
    yield tool["name"], {name: value for name, value in arguments.items() if value is not None}


_GENERATORS: dict[str, Callable[[ModelCall], Answer]] = {
    "echo": _echo,
    "slow": _slow,
    "leader": _leader,
    "tool": _tool,
}


class DemoConnection(ModelConnection):
    """A model whose answers come from a function.

    Raises:
        InvalidConfiguration: there is no model with this name.
    """

    def __init__(self, name: str) -> None:
        if name not in _GENERATORS:
            raise InvalidConfiguration(
                f"The provider demo has no model {name!r}",
                hint=f"use one of: {', '.join(_GENERATORS)}",
            )
        self._generate = _GENERATORS[name]

    async def answer(self, call: ModelCall, sink: AnswerSink) -> ModelAnswer:
        prompt = [call.instructions, *(str(message["content"]) for message in call.messages)]
        used = {"input_tokens": sum(map(_count_words, prompt)), "output_tokens": 0}
        texts: list[str] = []
        calls: list[tuple[str, str, dict[str, Any]]] = []
        sink.set_usage(build_usage(**used))
        async for piece in self._generate(call):
            if isinstance(piece, str):
                text = piece
                texts.append(text)
            else:
                name, arguments = piece
                text = json.dumps(arguments)
                calls.append((new_id(), name, arguments))
            used["output_tokens"] += _count_words(text)
            sink.set_usage(build_usage(**used))
            if isinstance(piece, str):
                sink.add_text(piece)
            else:
                sink.count_arriving(len(text))
        return ModelAnswer("".join(texts), clean_calls(calls), "tool_call" if calls else "stop")

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _last_text(call: ModelCall, role: str) -> str:
    texts = [message["content"] for message in call.messages if message["role"] == role]
    return str(texts[-1]) if texts else ""


def _ends_with_tool_result(call: ModelCall) -> bool:
    return bool(call.messages) and call.messages[-1]["role"] == "tool"


def _count_words(text: str) -> int:
    return len(text.split())


def _split_text(text: str) -> list[str]:
    words = re.findall(r"\S+\s*|\s+", text)
    size = max(1, -(-len(words) // _CHUNKS))
    return ["".join(words[start : start + size]) for start in range(0, len(words), size)]
