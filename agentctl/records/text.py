"""Text that every database takes, and text that is safe to look at.

PostgreSQL stores no NUL, UTF-8 has no lone surrogates, and terminals obey control characters.
"""

from __future__ import annotations

import re

__all__ = ["escape_controls", "is_storable", "replace_unstorable"]

_CONTROLS = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: what terminals obey
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # turn the direction of text around
    "\u2028\u2029\ud800-\udfff"  # separators of lines and paragraphs, lone surrogates
)
_control = re.compile(f"[{_CONTROLS}]")
_control_in_text = re.compile(f"(?![\n\t])[{_CONTROLS}]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Whether `text` can be stored and sent as it is."""
    return _UNSTORABLE.search(text) is None


def replace_unstorable(text: str) -> str:
    """`text` with U+FFFD in the place of each character that cannot be stored."""
    return _UNSTORABLE.sub("\ufffd", text)


def escape_controls(text: str, *, lines: bool = False) -> str:
    r"""`text` with control characters written out (`\n`, `\x1b`), safe for a terminal.

    Args:
        text: data from anywhere.
        lines: leave line feeds and tabs, for text of several lines; else the result is one line.
    """
    return (_control_in_text if lines else _control).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
