"""The input of a graph: the object `input` of a run, checked by the schema of the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import convert_to_messages

from agentctl.runtime.input_schema import InputSchema, WrongInput

MESSAGES = "messages"

_MESSAGES_SCHEMA = {
    "type": "array",
    "description": "Messages before the message of the run, as objects with role and content",
    "items": {"type": "object"},
}
"""The schema of LangChain has each class of messages, and refuses the short forms."""


def read_graph_input(graph: Any) -> InputSchema | None:
    """Return the schema of the object that a compiled graph takes; None for any object.

    `messages` is not required: the server adds the message of the run. An object is required if the
    graph requires another field, or takes no messages.
    """
    try:
        schema = dict(graph.get_input_jsonschema())
    except Exception:
        # A type of the state has no JSON Schema: the graph itself checks its input.
        return None
    properties = dict(schema.get("properties") or {})
    if schema.get("type") != "object" or not properties:
        return None
    takes_messages = MESSAGES in properties
    if takes_messages:
        properties[MESSAGES] = _MESSAGES_SCHEMA
    required = [name for name in schema.get("required") or () if name != MESSAGES]
    # Code of a graph that takes messages alone may read any object from its run context.
    closed = {} if set(properties) == {MESSAGES} else {"additionalProperties": False}
    schema = {**closed, **schema, "properties": properties, "required": required}
    schema["$defs"] = _find_used(properties, schema.get("$defs") or {})
    if not schema["$defs"]:
        del schema["$defs"]
    is_required = bool(required) or not takes_messages
    return InputSchema(schema, is_required=is_required, convert=_convert)


def _find_used(properties: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions to which the properties refer, and those to which these refer."""
    used: dict[str, Any] = {}
    texts = [json.dumps(properties)]
    while texts:
        text = texts.pop()
        for name, definition in known.items():
            if name not in used and f'"#/$defs/{name}"' in text:
                used[name] = definition
                texts.append(json.dumps(definition))
    return used


def _convert(value: dict[str, Any]) -> dict[str, Any]:
    if MESSAGES not in value:
        return value
    try:
        return {**value, MESSAGES: convert_to_messages(value[MESSAGES])}
    except Exception:
        # The text of the exception repeats the message.
        raise WrongInput("is no list of messages with role and content", f".{MESSAGES}") from None
