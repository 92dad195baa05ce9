"""The input of a graph: the object `input` of a run, checked by the schema of the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import convert_to_messages

from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.input_schema import InputSchema, WrongInput

MESSAGES = "messages"

_MESSAGES_SCHEMA = {
    "type": "array",
    "description": "Messages before the message of the run, as objects with role and content",
    "items": {"type": "object"},
}
"""The schema of LangChain has each class of messages, and refuses the short forms."""


def read_graph_input(graph: Any) -> InputSchema:
    """Return the schema of the object that a compiled graph takes.

    `messages` is not required: the server adds the message of the run. A typed dictionary that is
    the state, too, requires nothing: nodes write most of its keys, and LangGraph demands none. An
    object is required if other fields are, or if the graph takes no messages.

    Raises:
        UnusableObject: the input of the graph is no object.
    """
    builder: Any = getattr(graph, "builder", None)
    schema = _read_schema(graph, builder)
    properties = dict(schema.get("properties") or {})
    if schema.get("type") != "object" or (builder is not None and not properties):
        raise UnusableObject(
            "the input of the graph is no object", "call it in an async function of your own"
        )
    takes_messages = MESSAGES in properties
    is_free = takes_messages and builder is not None and _is_free(builder)
    listed = () if is_free else schema.get("required") or ()
    required = [name for name in listed if name != MESSAGES]
    if takes_messages:
        properties[MESSAGES] = _MESSAGES_SCHEMA
    # Code of a graph that takes messages alone may read any object from its run context.
    if set(properties) - {MESSAGES}:
        schema.setdefault("additionalProperties", False)
    schema |= {"properties": properties, "required": required}
    schema["$defs"] = _find_used(properties, schema.get("$defs") or {})
    if not schema["$defs"]:
        del schema["$defs"]
    is_required = bool(required) or not takes_messages
    return InputSchema(schema, is_required=is_required, convert=_convert)


def _is_free(builder: Any) -> bool:
    schema = builder.input_schema
    return schema is builder.state_schema and hasattr(schema, "__total__")


def _read_schema(graph: Any, builder: Any) -> dict[str, Any]:
    try:
        return dict(graph.get_input_jsonschema())
    except Exception:
        # A type has no JSON Schema; the names of the fields are known all the same.
        fields = {} if builder is None else builder.schemas.get(builder.input_schema, {})
        return {"type": "object", "properties": {name: {} for name in fields}}


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
