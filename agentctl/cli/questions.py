"""Questions at a terminal whose answers follow a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.cli.approvals import parse_value
from agentctl.cli.show.terminal import ask, note
from agentctl.errors import ConfirmationDeclined

_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "string": str,
    "array": list,
    "object": dict,
}

Schema = Mapping[str, Any]


def ask_value(label: str, schema: Schema | None, given: Mapping[str, Any] | None = None) -> Any:
    """Ask for a value; for each property if the schema is that of an object.

    Args:
        label: the name of the value.
        given: the present values of the properties, which an empty line keeps.

    Raises:
        ConfirmationDeclined: the input has ended.
    """
    schema = schema or {}
    properties = schema.get("properties")
    if not (schema.get("type") == "object" and isinstance(properties, Mapping) and properties):
        if given is not None:
            return _ask_one(label, {"type": "object"}, dict(given), is_optional=False)
        return _ask_one(label, schema, None, is_optional=False)
    values = dict(given or {})
    required = schema.get("required") or ()
    for name, part in properties.items():
        part = part if isinstance(part, Mapping) else {}
        default = values.get(name, part.get("default"))
        value = _ask_one(str(name), part, default, is_optional=name not in required)
        if value is not None:
            values[str(name)] = value
    return values


def _ask_one(label: str, schema: Schema, default: Any, *, is_optional: bool) -> Any:
    kept = "" if default is None else f" [{_to_text(default)}]"
    about = schema.get("description") or schema.get("title")
    if isinstance(about, str):
        note(about)
    while True:
        answer = ask(f"{label} ({_describe_type(schema)}){kept}: ")
        if answer is None:
            raise ConfirmationDeclined("no answer, nothing was changed")
        if not answer and (default is not None or is_optional):
            return default
        value = parse_value(answer, schema)
        problem = _find_problem(value, schema)
        if problem is None:
            return value
        note(problem)


def _find_problem(value: Any, schema: Schema) -> str | None:
    """Return why a value does not fit; the server checks the whole schema."""
    choices = schema.get("enum")
    if isinstance(choices, list) and value not in choices:
        return f"must be one of {', '.join(map(_to_text, choices))}"
    wanted = schema.get("type")
    expected = _TYPES.get(wanted) if isinstance(wanted, str) else None
    is_number_for_bool = wanted in ("integer", "number") and isinstance(value, bool)
    if expected is not None and (not isinstance(value, expected) or is_number_for_bool):
        return f"must be {'JSON of type ' if wanted in ('array', 'object') else 'of type '}{wanted}"
    return None


def _describe_type(schema: Schema) -> str:
    choices = schema.get("enum")
    if isinstance(choices, list):
        return " or ".join(map(_to_text, choices))
    wanted = schema.get("type")
    return wanted if isinstance(wanted, str) else "JSON or text"


def _to_text(value: Any) -> str:
    import orjson

    return value if isinstance(value, str) else orjson.dumps(value).decode()
