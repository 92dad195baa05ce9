"""The connections of models by provider, the models without a network, and the access of code to
models and results of tools (docs/models.md "Models in code", docs/agents.md "Context window").

This module imports no client of a provider: most runs of agents in code call no configured model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from agentctl.agents import tool
from agentctl.config import settings as config
from agentctl.config.providers import PROVIDERS, require_extra, requires_key
from agentctl.errors import InvalidConfiguration
from agentctl.records.items import DELEGATIONS
from agentctl.records.text import new_id
from agentctl.runtime.context import RunEnvironment, build_run_context
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import show_files
from agentctl.runtime.models.attempts import Attempts, ModelCounters, prepare_models
from agentctl.runtime.models.calls import (
    AnswerSink,
    ModelAnswer,
    ModelCall,
    ModelConnection,
    build_usage,
    clean_calls,
)
from agentctl.runtime.models.refusals import describe_missing_key

SLOW_WORDS = 200
"""Number of words of an answer of `slow`, which takes a minute."""

SLOW_SECONDS = 0.3
"""Pause before each further word of `slow`."""

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
    """Delegate the message to the first member, and answer with its result.

    Without a tool for delegations, echo the message.
    """
    delegation = next((tool for tool in call.tools if tool["name"] in DELEGATIONS), None)

    answer = None
    if _ends_with_tool_result(call):
        answer = _last_text(call, "tool")
    elif delegation is None:
        answer = _last_text(call, "user")

    if answer is not None:
        for chunk in _split_text(answer):
            await asyncio.sleep(0)
            yield chunk
        return

    assert delegation is not None
    properties = delegation["parameters"]["properties"]
    arguments = {"member_id": properties["member_id"]["enum"][0]}
    if "task" in properties:
        arguments["task"] = _last_text(call, "user")

    yield delegation["name"], arguments


async def _tool(call: ModelCall) -> Answer:
    """Call the tool that the message names, else the first tool, and answer with its result.

    The message is the value of each required text. Its first number, or 1, is the value of each
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
    properties = schema.get("properties", {})

    digits = re.search(r"\d+", message)
    number = int(digits[0]) if digits else 1
    values_by_type = {"string": message, "integer": number, "number": number}

    arguments = dict[str, Any]()
    for name in schema.get("required", ()):
        type_name = properties[name].get("type")
        if type_name in values_by_type:
            arguments[name] = values_by_type[type_name]
    yield tool["name"], arguments


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
        usage = {"input_tokens": sum(map(_count_words, prompt)), "output_tokens": 0}

        texts: list[str] = []
        calls: list[tuple[str, str, dict[str, Any]]] = []
        sink.set_usage(build_usage(**usage))

        async for piece in self._generate(call):
            if isinstance(piece, str):
                text = piece
                texts.append(text)
            else:
                name, arguments = piece
                text = json.dumps(arguments)
                calls.append((new_id(), name, arguments))

            usage["output_tokens"] += _count_words(text)
            sink.set_usage(build_usage(**usage))
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
        """Return a model and its fallbacks, each once, in the order of their calls.

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
        """Close the connections to all providers."""
        connections = self._open
        self._open = {}
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
        raise ExecutionError("MODEL_UNAVAILABLE", describe_missing_key(model))

    if PROVIDERS[model.provider].library:
        from agentctl.runtime.models.library_model import connect_library

        return connect_library(model, key, run_bytes)

    from agentctl.runtime.models.openai_chat import OpenAIConnection

    return OpenAIConnection(model, key, run_bytes)


current_access: ContextVar[ModelAccess | None] = ContextVar("agentctl_models", default=None)
"""The models for the code of the current run; None outside of runs."""

_configured: ContextVar[Collection[str] | None] = ContextVar("agentctl_configured", default=None)

_NAMED = 20
"""Maximum number of models in an error."""

is_known_call: ContextVar[bool] = ContextVar("agentctl_known_call", default=False)
"""True while the callbacks of LangGraph report a call of a model in the current context."""


class ModelAccess:
    """The models of the configuration for the code of one run. Belongs to one event loop.

    Args:
        models: the models by id.
        run_bytes: maximum size of a run, and therefore of an answer.

    Attributes:
        environment: the run.
        library: the kind of the runner, which reports the calls that its library makes; `""` if a
            function or a configured model executes the run.
        open_calls: the calls that the runner knows, by the ids of the objects that make them.
        finish_reason: the finish reason of the last answer to a call which the runner reports, as
            libraries do not pass it on; None before it.
        seen_runs: the ids of the runs of agno that the runner sees; None for all.
    """

    def __init__(
        self,
        models: Mapping[str, config.Model],
        connections: ModelConnections,
        environment: RunEnvironment,
        run_bytes: int,
    ) -> None:
        self.run_bytes = run_bytes
        self.loop = asyncio.get_running_loop()
        self.environment = environment
        self.library = ""
        self.open_calls: Counter[int] = Counter()
        self.finish_reason: str | None = None
        self.seen_runs: Collection[str] | None = None
        self._models = models
        self._connections = connections

    def reports(self, library: str) -> bool:
        """Return True if the runner of the run reports the calls that its library makes."""
        return bool(library) and library == self.library

    def check_thread(self) -> None:
        """Raise RuntimeError in the event loop of the server, which would wait for itself."""
        try:
            is_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_loop = False
        if is_loop:
            raise RuntimeError("call the model with await: this call would block the server")

    def prepare(self, model_id: str, settings: Mapping[str, Any] | None) -> Attempts:
        """Return the attempts of a call.

        Raises:
            ExecutionError: there is no such model, or its API key is not set.
        """
        model = self._models.get(model_id)
        if model is None:
            raise ExecutionError(
                "AGENT_FAILED", f"The agent calls the model {model_id}, which is not configured"
            )

        set_values = {name: value for name, value in (settings or {}).items() if value is not None}
        prepared = prepare_models(self._connections.connect(model), set_values)

        environment = self.environment
        environment.transcript.requests.begin(environment.earlier_runs)
        attempts = Attempts(
            environment.spec.run_id,
            prepared,
            self._connections.counters,
            environment.transcript,
            environment.keep_cause,
            environment,
        )

        attempts.begin_call()
        return attempts


@contextmanager
def checking_models(configured: Collection[str]) -> Iterator[None]:
    """Check the models that code names while its modules are imported and its objects are made.

    Args:
        configured: the ids of the configured models.
    """
    reset_token = _configured.set(configured)
    try:
        yield
    finally:
        _configured.reset(reset_token)


def check_model(model_id: object) -> None:
    """Check that a model is configured, if code is being loaded.

    Raises:
        ValueError: there is no such model; the text names the configured models.
    """
    configured = _configured.get()
    if configured is not None and model_id not in configured:
        names = ", ".join(sorted(configured)[:_NAMED]) or "none"
        raise ValueError(f"the model {model_id} is not configured; [[models]] has: {names}")


def get_access() -> ModelAccess:
    """Return the models for the current code.

    Raises:
        RuntimeError: the code is not called by a run.
    """
    access = current_access.get()
    if access is None:
        raise RuntimeError(
            "a model of the configuration was called outside of a run: start the agent with"
            " agentctl, for example with `agentctl runs start`"
        )
    return access


@tool(idempotent=True)
async def read_tool_result(id: str, offset: int = 0) -> str:
    """Read a part of an earlier tool result that is left out of the conversation.

    Args:
        id: Id of the result, as the line in its place has it.
        offset: First character to read, from 0.
    """
    access = current_access.get()
    if access is None:
        raise RuntimeError("read_tool_result was called outside of a run")
    try:
        return await build_run_context(access.environment).read_tool_result(id, offset)
    except (LookupError, TypeError, ValueError) as error:
        return str(error)
