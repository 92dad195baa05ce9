"""Names and values of the semantic conventions for GenAI, and those of agentctl.

The conventions have the status Development: docs/traces.md names their version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from agentctl.config.settings import Model

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
TOKEN_TYPE = "gen_ai.token.type"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
ERROR_TYPE = "error.type"

INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
USER_ID = "user.id"
"""Attributes that are exported with `tracing.content` only."""

RUN_ID = "agentctl.run.id"
RUN_STATUS = "agentctl.run.status"
RUN_LEG = "agentctl.run.leg"
RUN_RECOVERED = "agentctl.recovered"
RUN_PURPOSE = "agentctl.run.purpose"
CANCEL_REQUESTED = "agentctl.run.cancel_requested"
MODEL_ID = "agentctl.model.id"

OTHER_ERROR = "_OTHER"
CANCELLED = "cancelled"

USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
"""The attributes of token counters."""

PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
}
"""The names of the conventions for providers, where they differ from those of the configuration."""

CONTENT_CHARACTERS = 16_384
"""Characters after which a text of the content is cut."""


class KnownModel(NamedTuple):
    """A model of the configuration in the terms of the conventions."""

    provider: str
    name: str


def list_models(models: Iterable[Model]) -> Mapping[str, KnownModel]:
    """Return the models of the configuration by id."""
    return {
        model.id: KnownModel(PROVIDERS.get(model.provider, model.provider), model.model)
        for model in models
    }


def describe_usage(counters: Mapping[str, int | None]) -> dict[str, int]:
    """Return the attributes of the known token counters."""
    return {attribute: count for name, attribute in USAGE.items() if (count := counters.get(name))}


def dump_messages(role: str, text: str, calls: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return one message in the JSON form of the conventions."""
    parts: list[dict[str, Any]] = [{"type": "text", "content": cut(text)}] if text else []
    for call in calls:
        arguments = dump_content(call["arguments"])
        part = {"type": "tool_call", "id": call["id"], "name": call["name"]}
        parts.append({**part, "arguments": arguments})
    return orjson.dumps([{"role": role, "parts": parts}]).decode()


def dump_content(value: object) -> str:
    """Return a value as JSON text of bounded size."""
    return cut(orjson.dumps(value).decode())


def cut(text: str) -> str:
    return text if len(text) <= CONTENT_CHARACTERS else f"{text[:CONTENT_CHARACTERS]}…"
