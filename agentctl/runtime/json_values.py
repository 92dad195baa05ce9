"""JSON values from models and from code of users, in a form that can be stored and sent."""

from __future__ import annotations

import json
import math
from typing import Any

from agentctl.records.text import replace_unstorable
from agentctl.runtime.json_pieces import encode_json

_MAXIMUM_DEPTH = 100
"""Maximum nesting of a value: JSON writers have a limit."""

_INTEGERS = range(-(2**63), 2**64)
"""Integers that JSON writers accept."""


class NotSerializable(Exception):
    """A value of a tool or of an agent has no JSON form. The cause has the reason."""


class ValueTooLarge(NotSerializable):
    """The JSON of a value has more characters than allowed. The rest was not converted."""


def to_json_value(value: object, limit: int) -> Any:
    """Convert a value to JSON: pydantic models, dataclasses, dates and so on.

    Args:
        limit: maximum number of characters of its JSON.

    Raises:
        ValueTooLarge: the JSON is longer.
        NotSerializable: the value has no JSON form, or is nested too deeply.
    """
    pieces: list[str] = []
    size = 0
    try:
        for piece in encode_json(value, limit):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise ValueTooLarge
        return clean_json_value(json.loads("".join(pieces)))
    except ValueTooLarge:
        raise
    except Exception as error:
        raise NotSerializable from error


def clean_json_value(value: Any, depth: int = 1) -> Any:
    """Return a JSON value that can be written again; an integer that is too large becomes text.

    Raises:
        ValueError: nested deeper than `_MAXIMUM_DEPTH`, or with a number that JSON does not have.
    """
    if depth > _MAXIMUM_DEPTH or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError
    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, dict):
        return {
            replace_unstorable(name): clean_json_value(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [clean_json_value(item, depth + 1) for item in value]
    return str(value) if isinstance(value, int) and value not in _INTEGERS else value
