"""Checks of values from callers, shared by the local backend and the server.

The databases and JSON limit what can be stored: PostgreSQL stores no NUL, UTF-8 has no lone
surrogates, and not every JSON reader keeps an integer of more than 64 bits.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from agentctl.errors import TooLarge, ValidationFailed
from agentctl.records.ids import is_session_id
from agentctl.records.text import is_storable

INTEGERS = range(-(2**63), 2**63)
"""Integers that are accepted: those of 64 bits."""

MAXIMUM_DEPTH = 64
"""Levels of a free-form JSON object."""

UNSTORABLE = "must not contain NUL or lone surrogates"
"""The error of a text that not every database stores."""


def check_text(name: str, text: str) -> str:
    """Return `text` if every database can store it unchanged (docs/contract.md "Requests").

    Args:
        name: the parameter or field, for the error.

    Raises:
        ValidationFailed: the text contains NUL or a lone surrogate.
    """
    if not is_storable(text):
        raise ValidationFailed(f"{name} {UNSTORABLE}")
    return text


def check_texts(**texts: str | None) -> None:
    """Check each text of a filter; drivers report NUL and surrogates in different ways.

    Raises:
        ValidationFailed: as `check_text`, for the first text that fails.
    """
    for name, text in texts.items():
        if text is not None:
            check_text(name, text)


def check_json(name: str, value: object) -> None:
    """Check a free-form JSON value.

    Args:
        value: objects, arrays, strings, numbers, booleans and null.

    Raises:
        ValidationFailed: it has a problem (`find_json_problem`).
    """
    if problem := find_json_problem(value):
        raise ValidationFailed(f"{name} {problem}")


def dump_checked_json(name: str, value: Any, limit: int | None = None) -> str | None:
    """Return the JSON text of a value of a caller, None for None.

    Args:
        limit: maximum size in bytes; None for no limit.

    Raises:
        ValidationFailed: see `check_json`.
        TooLarge: the text exceeds the limit.
    """
    import orjson

    if value is None:
        return None
    check_json(name, value)
    text = orjson.dumps(value)
    if limit is not None and len(text) > limit:
        raise TooLarge(f"{name} must be at most {limit} bytes of JSON")
    return text.decode()


def find_json_problem(value: object) -> str | None:
    """Return why a value cannot be stored as JSON, to follow its name; None if it can.

    It has a text as in `check_text`, an integer of more than 64 bits, more than `MAXIMUM_DEPTH`
    levels, or something that JSON does not have, such as NaN or a date.
    """
    level: list[Any] = [value]
    for _ in range(MAXIMUM_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif problem := _find_problem_of_scalar(item):
                return problem
        if not inner:
            return None
        level = inner
    return f"nests deeper than {MAXIMUM_DEPTH} levels"


def _find_problem_of_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return None if is_storable(value) else UNSTORABLE
    if isinstance(value, int):
        return None if value in INTEGERS else "holds an integer of more than 64 bits"
    if value is None or (isinstance(value, float) and isfinite(value)):
        return None
    return "holds a value that JSON does not have"


def check_session_id(session_id: str) -> str:
    """Return `session_id` if a client may choose it (docs/contract.md "Records").

    Raises:
        ValidationFailed: the id breaks the grammar of session ids.
    """
    if not is_session_id(session_id):
        raise ValidationFailed(
            "session_id must be 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -, but not . or .."
        )
    return session_id
