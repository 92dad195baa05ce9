"""Text that every database takes: PostgreSQL stores no NUL, UTF-8 has no lone surrogates."""

from __future__ import annotations

import re

__all__ = ["clean", "is_storable"]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Whether `text` can be stored and sent as it is."""
    return _UNSTORABLE.search(text) is None


def clean(text: str) -> str:
    """`text` with U+FFFD in the place of each character that cannot be stored."""
    return _UNSTORABLE.sub("\ufffd", text)
