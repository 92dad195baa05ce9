"""The input of a graph: its object, its messages, and the values that a request may configure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, get_type_hints

from langchain_core.messages import convert_to_messages

from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.pauses import InputSchema, WrongInput
from agentctl.runtime.runners.declared_types import (
    build_adapter,
    build_converter,
    is_typed_dict,
    list_required_keys,
)

MESSAGES = "messages"

CONFIGURABLE = "configurable"
"""The member of the input with values for `config["configurable"]` and the context."""

_RESERVED = ("checkpoint_", "run_context", "thread_id", "__")
"""Beginnings of the names that the server and LangGraph set."""

_MESSAGES_SCHEMA = {
    "type": "array",
    "description": "Messages before the message of the run, as objects with role and content",
    "items": {"type": "object"},
}
"""The schema of LangChain has each class of messages, and refuses the short forms."""


class Configurable:
    """The fields of the context of a graph that a request may set, and no others.

    Args:
        declared: the `context_schema` of the graph.
        makes_context: True if a request makes the context; False if other code does.

    Raises:
        UnusableObject: a name is no field of the context, or a context needs further fields.
    """

    def __init__(self, declared: Any, names: Collection[str], *, makes_context: bool) -> None:
        try:
            adapter = build_adapter(declared)
            schema = adapter.json_schema()
            if schema["type"] != "object":
                raise TypeError
        except Exception as error:
            problem = "configurable needs a graph whose context_schema has a JSON Schema"
            raise UnusableObject(problem, "a context_schema is a dataclass, for example") from error

        fields = schema.get("properties") or {}
        required = schema.get("required") or ()

        for name in names:
            if name not in fields or name.startswith(_RESERVED):
                problem = f"configurable names {name}, which a request cannot set"
                allowed_fields = ", ".join(
                    field for field in fields if not field.startswith(_RESERVED)
                )
                raise UnusableObject(
                    problem, f"the fields of the context_schema are: {allowed_fields}"
                )

        missing = [name for name in required if name not in names]
        if makes_context and missing:
            raise UnusableObject(
                f"the context of the graph needs {', '.join(missing)}, which is not configurable",
                "add the name to configurable, or give the field a default",
            )

        self.definitions: Mapping[str, Any] = schema.get("$defs") or {}
        self.schema = {
            "type": "object",
            "properties": {name: fields[name] for name in names},
            "required": [name for name in required if name in names],
            "additionalProperties": False,
        }

        self.makes_context = makes_context
        self._convert = build_converter(adapter)

    def build_context(self, values: Mapping[str, Any]) -> Any:
        """Make the context of a run of the values that its request configures.

        Raises:
            WrongInput: a value is wrong in a way that the schema does not say.
        """
        try:
            return self._convert(dict(values))
        except WrongInput as wrong:
            raise WrongInput(wrong.problem, f".{CONFIGURABLE}{wrong.place}") from None


def read_graph_input(graph: Any, configurable: Configurable | None) -> InputSchema:
    """Return the schema of the object that a compiled graph takes.

    `messages` is not required: the server adds the message of the run. A typed dictionary requires
    the keys that are marked with `Required`, because LangGraph demands none. An object is required
    if other fields are, or if the graph takes no messages. The values of `configurable` are no part
    of what the graph gets.
    """
    builder: Any = getattr(graph, "builder", None)
    declared = _find_function_input(graph) if builder is None else builder.input_schema
    schema = _read_schema(graph, declared)
    properties = dict(schema.get("properties") or {})

    if schema.get("type") != "object" or (builder is not None and not properties):
        raise UnusableObject(
            "the input of the graph is no object", "call it in an async function of your own"
        )

    takes_messages = MESSAGES in properties
    is_free = is_typed_dict(declared)
    required_keys = list_required_keys(declared) if is_free else schema.get("required") or ()
    required = [name for name in required_keys if name != MESSAGES]

    if takes_messages:
        properties[MESSAGES] = _MESSAGES_SCHEMA

    definitions = {**schema.get("$defs", {})}

    if configurable is not None:
        _add_configurable(configurable, properties, required, definitions)

    # Code of a graph that takes messages alone may read any object from its run context.
    if set(properties) - {MESSAGES}:
        schema.setdefault("additionalProperties", False)
    schema |= {"properties": properties, "required": required}

    schema["$defs"] = _find_used(properties, definitions)
    if not schema["$defs"]:
        del schema["$defs"]

    # The function of a functional graph gets a value of the class that it declares.
    convert_object: Callable[[dict[str, Any]], Any] = _convert_messages
    is_class = is_dataclass(declared) or hasattr(declared, "model_json_schema")
    if builder is None and not takes_messages and is_class:
        convert_object = build_converter(build_adapter(declared))

    def convert(value: dict[str, Any]) -> Any:
        own_values = dict(value)
        values = {} if configurable is None else own_values.pop(CONFIGURABLE, {})

        if configurable is not None and configurable.makes_context:
            configurable.build_context(values)

        return convert_object(own_values)

    return InputSchema(schema, is_required=bool(required) or not takes_messages, convert=convert)


def add_messages_to(graph_input: Any, earlier_messages: list[Any], new_messages: list[Any]) -> Any:
    """Return the input of a graph: its object, with the messages of the session and of the run."""
    own_messages = graph_input.get(MESSAGES, ()) if isinstance(graph_input, dict) else ()
    messages = [*earlier_messages, *own_messages, *new_messages]
    return {**graph_input, MESSAGES: messages} if messages else graph_input


def _add_configurable(
    configurable: Configurable,
    properties: dict[str, Any],
    required: list[str],
    definitions: dict[str, Any],
) -> None:
    if CONFIGURABLE in properties:
        problem = f"configurable has no effect for a graph whose input has a field {CONFIGURABLE}"
        raise UnusableObject(problem, "rename the field, or remove the key configurable")

    properties[CONFIGURABLE] = configurable.schema

    if configurable.schema["required"]:
        required.append(CONFIGURABLE)

    for name, definition in configurable.definitions.items():
        if definitions.setdefault(name, definition) != definition:
            problem = f"the input and the context of the graph have two types named {name}"
            raise UnusableObject(problem, "rename one of them, or remove the key configurable")


def _find_function_input(graph: Any) -> Any:
    """Return the type of the input of a functional graph (`@entrypoint`).

    LangGraph keeps the text of an annotation in a module with postponed annotations.
    """
    declared = graph.InputType
    if not isinstance(declared, str):
        return declared
    try:
        (node,) = graph.nodes.values()
        function = node.bound.func or node.bound.afunc
        return get_type_hints(function)[function.__code__.co_varnames[0]]
    except Exception:
        return dict


def _read_schema(graph: Any, declared: Any) -> dict[str, Any]:
    builder: Any = getattr(graph, "builder", None)
    try:
        if is_typed_dict(declared):
            return deepcopy(_read_state_schema(declared))
        if builder is None and isinstance(graph.InputType, str):
            return build_adapter(declared).json_schema()
        return dict(graph.get_input_jsonschema())
    except Exception:
        # A type has no JSON Schema; the names of the fields are known all the same.
        fields = {} if builder is None else builder.schemas.get(declared, {})
        return {"type": "object", "properties": {name: {} for name in fields}}


@lru_cache(maxsize=32)
def _read_state_schema(state: Any) -> dict[str, Any]:
    """Return the JSON Schema of a typed dictionary; callers may not change it.

    That of messages takes 0.1 CPU seconds, and most graphs of a server share their state.
    """
    return build_adapter(state).json_schema()


def _find_used(properties: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions to which the properties refer, and those to which these refer."""
    used_definitions: dict[str, Any] = {}
    texts = [json.dumps(properties)]

    while texts:
        text = texts.pop()
        for name, definition in definitions.items():
            if name not in used_definitions and f'"#/$defs/{name}"' in text:
                used_definitions[name] = definition
                texts.append(json.dumps(definition))

    return used_definitions


def _convert_messages(value: dict[str, Any]) -> dict[str, Any]:
    if MESSAGES not in value:
        return value
    try:
        return {**value, MESSAGES: convert_to_messages(value[MESSAGES])}
    except Exception:
        # The text of the exception repeats the message.
        raise WrongInput("is no list of messages with role and content", f".{MESSAGES}") from None
