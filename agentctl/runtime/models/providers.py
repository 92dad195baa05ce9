"""Connections to the providers of the configured models (docs/models.md), and the demo models.

Connections belong to one event loop. The models of the provider `demo`, `echo`, `slow`, `leader`
and `tool`, need no network. They are deterministic, stream like other models, and count one token
for each word.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentctl.config.providers import PROVIDERS, require_extra, requires_key
from agentctl.errors import InvalidConfiguration
from agentctl.records.ids import new_id
from agentctl.records.items import DELEGATIONS
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import show_files
from agentctl.runtime.models.attempts import ModelCounters
from agentctl.runtime.models.calls import (
    ModelAnswer,
    ModelCall,
    ModelConnection,
    build_usage,
    clean_calls,
)

if TYPE_CHECKING:
    from agentctl.config import settings as config
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
        call = replace(call, messages=await show_files(call.messages, self.takes, call.files))
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


_log = logging.getLogger("agentctl.runtime")


class ModelConnections:
    """The connections to the configured models, opened at first use.

    Args:
        models: the models by id.
        run_bytes: maximum size of a run, and therefore of an answer.

    Attributes:
        counters: counts of further attempts of model calls.
    """

    def __init__(self, models: Mapping[str, config.Model], run_bytes: int) -> None:
        self.counters = ModelCounters(models)
        self._models = models
        self._run_bytes = run_bytes
        self._open: dict[str, ModelConnection] = {}

    def connect(self, model: config.Model) -> list[tuple[config.Model, ModelConnection]]:
        """Return a model and its fallbacks, each once, in the order in which they are called.

        Fallbacks without an API key are left out.

        Raises:
            ExecutionError: the API key of the model is not set.
        """
        return [(model, self._connect(model)), *self._connect_fallbacks(model)]

    def _connect(self, model: config.Model) -> ModelConnection:
        if model.id not in self._open:
            self._open[model.id] = _connect_model(model, self._run_bytes)
        return self._open[model.id]

    def _connect_fallbacks(self, model: config.Model) -> list[tuple[config.Model, ModelConnection]]:
        connected: dict[str, tuple[config.Model, ModelConnection]] = {}
        for fallback in (self._models[name] for name in model.fallbacks):
            with suppress(ExecutionError):
                connected.setdefault(fallback.id, (fallback, self._connect(fallback)))
            for entry in self._connect_fallbacks(fallback):
                connected.setdefault(entry[0].id, entry)
        return list(connected.values())

    async def close(self) -> None:
        connections, self._open = self._open, {}
        for connection in connections.values():
            await connection.close()


def _connect_model(model: config.Model, run_bytes: int) -> ModelConnection:
    """Build the connection of a configured model."""
    if model.provider == "demo":
        return DemoConnection(model.model)
    require_extra(model)
    key = os.environ.get(model.api_key_env, "") if model.api_key_env else ""
    if not key and (model.api_key_env or requires_key(model)):
        _log.error(
            "model %s: the environment variable %s is not set",
            model.id,
            model.api_key_env or "that api_key_env should name",
        )
        raise ExecutionError("MODEL_UNAVAILABLE", "The API key of the model is not set")
    if PROVIDERS[model.provider].library:
        from agentctl.runtime.models.library_model import connect_library

        return connect_library(model, key, run_bytes)
    from agentctl.runtime.models.openai_chat import OpenAIConnection

    return OpenAIConnection(model, key, run_bytes)
