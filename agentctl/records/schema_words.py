"""Words for values that pydantic refuses: what is allowed, and where, in terms of a user.

The texts of pydantic name Python's types and regular expressions, and repeat the refused value.
These words come from the JSON Schema of the checked type, so they need no second declaration: "must
be an integer from 1 to 10". A type whose rules have no such words has a `description`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctl.records.text import quote_text

Schema = Mapping[str, Any]
"""A JSON Schema of pydantic. The definitions of its parts are in `$defs` of the whole schema."""

HIDDEN_KEYWORD = "writeOnly"
"""Keyword of JSON Schema for values that no error repeats."""

KEY_STEP = "[key]"
"""The last step of the location of an error if the name of a member is wrong, not its value."""

_WORDS = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
}


def find_part(schema: Schema, location: Sequence[str | int]) -> Schema:
    """Return the schema of the value at a location of pydantic.

    Args:
        schema: the schema of the whole value.
        location: `loc` of an error, such as `("agents", 0, "tools", 1)`.
    """
    if location and location[-1] == KEY_STEP:
        parent = find_part(schema, location[:-2])
        names: Schema = parent["propertyNames"]
        return names

    definitions = schema.get("$defs", {})
    part = _resolve(schema, definitions)
    for step in location:
        if isinstance(step, int):
            part = part["items"]
        elif step in part.get("properties", ()):
            part = part["properties"][step]
        else:
            part = _find_member(part)
        part = _resolve(part, definitions)
    return part


def describe_values(part: Schema, definitions: Schema) -> str:
    """Return the words for the allowed values: "an integer from 1 to 10".

    Args:
        part: the schema of the value.
        definitions: `$defs` of the whole schema.
    """
    part = _resolve(part, definitions)
    if "properties" in part:
        return f"a table with {', '.join(part['properties'])}"
    if "description" in part:
        return str(part["description"])
    if "enum" in part:
        return f"one of: {', '.join(part['enum'])}"
    if "const" in part:
        return f"one of: {part['const']}"
    if part.get("type") == "array":
        return f"a list, each element {describe_values(part['items'], definitions)}"
    if part.get("type") == "object":
        members = _find_member(part)
        words = f", each value {describe_values(members, definitions)}" if members else ""
        return f"a table{words}"

    words = _WORDS[part["type"]]
    if "minimum" in part:
        words = f"{words} from {part['minimum']} to {part['maximum']}"
    return words


def show_value(value: object, part: Schema, definitions: Schema) -> str:
    """Return a refused value for a message, on one line: `"x"`, `1.5`, `a list`.

    A value of a hidden type, and of a list or table of them, is "this one".
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "a table"

    inner = _resolve(part.get("items") or _find_member(part), definitions)
    if part.get(HIDDEN_KEYWORD) or inner.get(HIDDEN_KEYWORD):
        return "this one" if isinstance(value, str) else "a number"
    return quote_text(value) if isinstance(value, str) else str(value)


def _resolve(part: Schema, definitions: Schema) -> Schema:
    """Return the schema that a reference names, and of a value or null that of the value."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return _resolve(definitions[name], definitions)
    if "anyOf" in part:
        value = next(choice for choice in part["anyOf"] if choice.get("type") != "null")
        resolved = _resolve(value, definitions)
        if "description" in part:
            return {**resolved, "description": part["description"]}
        return resolved
    return part


def _find_member(part: Schema) -> Schema:
    """Return the schema of the members of a table; an empty one if they can be anything."""
    patterns: Mapping[str, Schema] = part.get("patternProperties", {})
    if patterns:
        return next(iter(patterns.values()))
    members = part.get("additionalProperties")
    return members if isinstance(members, dict) else {}
