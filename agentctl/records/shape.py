"""Comparison of parsed JSON from a server with the type of a record.

It is as strict as a command needs, so that servers of other versions can be used: unknown fields
are allowed, and only the fields in `REQUIRED_FIELDS` must be present.
"""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

from agentctl.records.times import Timestamp

REQUIRED_FIELDS = frozenset(
    {
        "admin", "agent_id", "allowed", "cancel", "data", "decided_by", "id", "meta",
        "name", "operation", "outcome", "principal", "required_scopes", "run_id", "scopes", "seq",
        "session_id", "status", "steps", "team_id", "workflow_id",
    }
)  # fmt: skip
"""Fields that a command reads without a default, if their record type requires them."""

_SCALARS = (str, int, float, bool, NoneType)


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
        return _find(value, expected, "")
    except RecursionError:  # a type that contains itself, and a value that is as deep
        return ""


def _find(value: object, expected: Any, path: str) -> str | None:
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return None
    if expected == Timestamp:
        return None if isinstance(value, _SCALARS) else path
    if origin in (Annotated, NotRequired, Required):
        return _find(value, arguments[0], path)
    if origin in (Union, UnionType):
        records = [each for each in arguments if is_typeddict(each)]
        if isinstance(value, dict) and records:
            # The record that shares most fields with the value is the one that is meant.
            names = value.keys()
            return _find(
                value, max(records, key=lambda each: len(_fields(each).keys() & names)), path
            )
        found = [_find(value, each, path) for each in arguments]
        return None if None in found else max(found, key=lambda each: len(each or ""))
    if origin is list:
        if not isinstance(value, list):
            return path
        places = (_find(item, arguments[0], f"{path}[{at}]") for at, item in enumerate(value))
        return next((place for place in places if place is not None), None)
    if origin is dict:
        if not isinstance(value, dict):
            return path
        places = (_find(item, arguments[1], _join(path, name)) for name, item in value.items())
        return next((place for place in places if place is not None), None)
    if is_typeddict(expected):
        return _find_in_record(value, expected, path)
    return None if _is_scalar_of(value, expected, origin, arguments) else path


def _find_in_record(value: object, expected: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return path
    for name, kind in _fields(expected).items():
        if name in value:
            place = _find(value[name], kind, _join(path, name))
            if place is not None:
                return place
        elif name in REQUIRED_FIELDS and expected.__total__ and get_origin(kind) is not NotRequired:
            return _join(path, name)
    return None


@cache
def _fields(record: Any) -> dict[str, Any]:
    return get_type_hints(record, include_extras=True)


def _is_scalar_of(value: object, expected: Any, origin: Any, arguments: tuple[object, ...]) -> bool:
    allowed = {type(each) for each in arguments} if origin is Literal else {expected}
    if float in allowed:
        allowed.add(int)
    return type(value) in allowed


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
