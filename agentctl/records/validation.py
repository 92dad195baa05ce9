"""Checks of values from callers, shared by the local backend and the server.

The databases and JSON limit what can be stored: PostgreSQL stores no NUL, UTF-8 has no lone
surrogates, and not every JSON reader keeps an integer of more than 64 bits.
"""

from __future__ import annotations

from typing import Any

from agentctl.errors import ValidationFailed
from agentctl.records.ids import is_session_id
from agentctl.records.text import is_storable

INTEGERS = range(-(2**63), 2**63)
"""Integers that are accepted: those of 64 bits."""

MAXIMUM_DEPTH = 64
"""Levels of a free-form JSON object."""


def check_text(name: str, text: str) -> str:
    """Return `text` if every database can store it unchanged (docs/contract.md "Requests").

    Args:
        name: the parameter or field, for the error.
        text: the value.

    Raises:
        ValidationFailed: the text contains NUL or a lone surrogate.
    """
    if not is_storable(text):
        raise ValidationFailed(f"{name} must not contain NUL or lone surrogates")
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
    """Check every text and integer of a free-form JSON value, and its depth.

    Args:
        name: the field, for the error.
        value: objects, arrays, strings, numbers, booleans and null.

    Raises:
        ValidationFailed: a text as in `check_text`, an integer of more than 64 bits, or more than
            `MAXIMUM_DEPTH` levels.
    """
    level: list[Any] = [value]
    for _ in range(MAXIMUM_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                check_text(name, item)
            elif isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, int) and item not in INTEGERS:
                raise ValidationFailed(f"{name} holds an integer of more than 64 bits")
        if not inner:
            return
        level = inner
    raise ValidationFailed(f"{name} nests deeper than {MAXIMUM_DEPTH} levels")


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
