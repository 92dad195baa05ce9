"""Text that every database stores, and text for people that is safe on a terminal.

PostgreSQL stores no NUL, UTF-8 has no lone surrogates, and terminals execute control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_CONTROLS = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: terminals execute them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of text
    "\u2028\u2029\ud800-\udfff"  # separators of lines and paragraphs, lone surrogates
)
_control = re.compile(f"[{_CONTROLS}]")
_control_in_text = re.compile(f"(?![\n\t])[{_CONTROLS}]")
_not_ascii = re.compile("[^\x00-\x7f]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_QUOTED = 40
_NAME_LENGTH = 200

MASK = "********"
"""The text that is shown and logged in place of a secret."""


def is_storable(text: str) -> bool:
    """Return True if `text` can be stored and sent unchanged."""
    return _UNSTORABLE.search(text) is None


def replace_unstorable(text: str) -> str:
    """Return `text` with U+FFFD for each character that cannot be stored."""
    # Ten times faster than the expression, which matters for texts of megabytes.
    if "\0" not in text:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return _UNSTORABLE.sub("\ufffd", text)


def escape_controls(text: str, *, lines: bool = False) -> str:
    r"""Return `text` with control characters escaped (`\n`, `\x1b`), safe for a terminal.

    Args:
        lines: keep line feeds and tabs, for text of several lines; else the result is one line.
    """
    return (_control_in_text if lines else _control).sub(_escape, text)


def escape_json_controls(text: str, *, ascii_only: bool = False) -> str:
    r"""Return JSON with control characters escaped (`\u009b`), safe for a terminal.

    The result is the same JSON. A carriage return, which is white space there, becomes a space.

    Args:
        text: the body of a response that may not be JSON.
        ascii_only: escape every character that is not ASCII.
    """
    pattern = _not_ascii if ascii_only else _control_in_text
    return pattern.sub(_escape_json, text.replace("\r", " "))


def _escape_json(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1].replace("\x7f", "\\u007f")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def mask_secrets(text: str, secrets: Iterable[str], *, minimum: int = 8) -> str:
    """Return `text` with `MASK` in place of secrets.

    Args:
        secrets: the secrets; one that contains another comes first.
        minimum: shorter ones are not secrets, and could be a part of any word.
    """
    for secret in secrets:
        if len(secret) >= minimum:
            text = text.replace(secret, MASK)
    return text


def cut_text(text: str, length: int) -> str:
    """Return a text of at most `length` characters; the last one of a cut text is `…`."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def quote_text(text: str) -> str:
    """Quote `text` on one line, cut at 40 characters, with control characters escaped."""
    cut = text if len(text) <= _QUOTED else text[:_QUOTED] + "…"
    quoted = json.dumps(cut, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in quoted)


def suggest_name(name: str, names: Iterable[str], *, cutoff: float = 0.75) -> str | None:
    """Return the one of `names` that is most similar to `name`, for "did you mean"; else None.

    Args:
        cutoff: the least similarity, from 0 to 1.
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def format_bytes(count: int) -> str:
    """Return a text such as `4 kB`, rounded down."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}"
        count //= 1_000
    return f"{count} TB"


def read_name(value: object) -> str | None:
    """Return a name that a provider has reported, made storable; None for another value."""
    if not isinstance(value, str) or not value:
        return None
    return replace_unstorable(value[:_NAME_LENGTH])
