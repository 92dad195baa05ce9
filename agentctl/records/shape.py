"""Comparison of parsed JSON from a server with the type of a record.

It is as strict as a command needs, so that servers of other versions can be used: unknown fields
are allowed, and only the fields in `REQUIRED_FIELDS` must be present.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Union

from agentctl.records.value_types import ValueType, compile_type, field_types

REQUIRED_FIELDS = frozenset(
    {
        "admin", "agent_id", "allowed", "cancel", "data", "decided_by", "id", "meta",
        "name", "operation", "outcome", "principal", "required_scopes", "run_id", "scopes", "seq",
        "session_id", "status", "steps", "team_id", "workflow_id",
    }
)  # fmt: skip
"""Fields that a command reads without a default, if their record type requires them."""

_compile = cache(compile_type)


def find_mismatch(value: object, expected: Any) -> str | None:
    """Return the place of the first value that is not of the expected type.

    Args:
        value: parsed JSON.
        expected: the type: a `TypedDict`, or what the fields of one have. A `Literal` means
            the types of its values, because later versions have more values.

    Returns:
        `data[0].status`, an empty text for the whole value, or None if everything matches.
    """
    try:
        place = _find(value, _compile(expected), "")
    except RecursionError:  # a type that contains itself, and a value that is as deep
        return ""
    return place and place.removeprefix(".")


def _find(value: object, expected: ValueType, path: str) -> str | None:
    kind = expected.kind
    if kind is Any or (value is None and expected.optional):
        return None
    if expected.classes:
        return None if type(value) in expected.classes else path
    if kind is Union:
        return _find_in_union(value, expected.parts, path)
    if not isinstance(value, list if kind is list else dict):
        return path
    places: Iterable[str | None]
    if isinstance(value, list):
        places = (_find(part, expected.item, f"{path}[{at}]") for at, part in enumerate(value))
    elif kind is dict:
        places = (_find(part, expected.item, f"{path}.{name}") for name, part in value.items())
    else:
        places = (
            _find(value[name], field, f"{path}.{name}") if name in value else f"{path}.{name}"
            for name, field in field_types(kind).items()
            if name in value or (name in REQUIRED_FIELDS and field.required)
        )
    return next((place for place in places if place is not None), None)


def _find_in_union(value: object, parts: tuple[ValueType, ...], path: str) -> str | None:
    records = [part for part in parts if part.is_record]
    if isinstance(value, dict) and records:
        # The record that shares most fields with the value is the one that is meant.
        names = value.keys()
        best = max(records, key=lambda record: len(field_types(record.kind).keys() & names))
        return _find(value, best, path)
    places = [_find(value, part, path) for part in parts]
    return None if None in places else max(places, key=lambda place: len(place or ""))
