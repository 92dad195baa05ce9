"""Texts that every database stores, texts that are safe on a terminal, ids, and their checks.

PostgreSQL stores no NUL, UTF-8 has no lone surrogates, terminals execute control characters, and
not every JSON reader keeps an integer of more than 64 bits.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from math import isfinite
from typing import Any

from agentctl.errors import TooLarge, ValidationFailed

_CONTROLS = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: terminals execute them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of text
    "\u2028\u2029\ud800-\udfff"  # separators of lines and paragraphs, lone surrogates
)
_control = re.compile(f"[{_CONTROLS}]")
_control_in_text = re.compile(f"(?![\n\t])[{_CONTROLS}]")
_not_ascii = re.compile("[^\x00-\x7f]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_unstorable = re.compile("[\x00\ud800-\udfff]")
_surrogate_pair = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_QUOTED_LENGTH = 40
"""Characters of a text that a message quotes."""

_NAME_LENGTH = 200
"""Characters of a name that a provider has reported."""

MASK = "********"
"""The text that is shown and logged in place of a secret."""


def is_storable(text: str) -> bool:
    """Return True if `text` can be stored and sent unchanged."""
    return _unstorable.search(text) is None


def replace_unstorable(text: str) -> str:
    """Return `text` with U+FFFD for each character that cannot be stored.

    Two surrogates that are one character become this character: JSON of other programs has them.
    """
    # Ten times faster than the expression, which matters for texts of megabytes.
    if "\0" not in text:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return _unstorable.sub("\ufffd", _surrogate_pair.sub(_join_pair, text))


def _join_pair(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-be", "surrogatepass").decode("utf-16-be")


class PieceJoiner:
    """Joins the characters that a stream has cut: each half arrives as a surrogate of its own.

    What `add` and `end` return can be stored.

    Attributes:
        held: the first half of a character that waits for the other half; `""` for none.
    """

    def __init__(self) -> None:
        self.held = ""

    def add(self, piece: str) -> str:
        """Return the text that is complete with this piece; the first half of a character waits."""
        text = piece
        if self.held:
            text = self.held + piece
            self.held = ""

        if text and "\ud800" <= text[-1] <= "\udbff":
            self.held = text[-1]
            text = text[:-1]
        return replace_unstorable(text)

    def end(self) -> str:
        """Return what waits, at the end of a text: U+FFFD, or nothing."""
        rest = replace_unstorable(self.held)
        self.held = ""
        return rest


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
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def mask_secrets(text: str, secrets: Iterable[str], *, minimum: int = 8) -> str:
    """Return `text` with `MASK` in place of secrets.

    Args:
        secrets: the secrets; one that contains another comes first.
        minimum: shorter texts are no secrets: they could be a part of any word.
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
    if len(text) > _QUOTED_LENGTH:
        text = text[:_QUOTED_LENGTH] + "…"
    quoted = json.dumps(text, ensure_ascii=False)
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


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, such as `1 run`, `1,200 runs` or `2 memories`.

    Args:
        plural: the noun for other counts than 1; empty: with an `s`.
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {plural or f'{noun}s'}"


def read_name(value: object) -> str | None:
    """Return a name that a provider has reported, made storable; None for another value."""
    if not isinstance(value, str) or not value:
        return None
    return replace_unstorable(value[:_NAME_LENGTH])


COMPONENT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""The grammar of ids in the configuration: agents, teams, workflows, models, databases."""

SESSION_ID = (
    r"^([A-Za-z0-9_~@-][A-Za-z0-9._~@-]{0,127}"
    r"|\.[A-Za-z0-9_~@-][A-Za-z0-9._~@-]{0,126}"
    r"|\.\.[A-Za-z0-9._~@-]{1,126})$"
)
"""The grammar of session ids from clients: `.` and `..` are excluded, because no path can have them
as a segment (RFC 3986 5.2.4). A lookahead would say so in fewer words, but not every reader of the
OpenAPI document knows them."""

IDEMPOTENCY_KEY = r"^[!-~]{1,255}$"
"""The grammar of idempotency keys: visible ASCII, as in a header."""

_component_id = re.compile(COMPONENT_ID[1:-1])
_session_id = re.compile(SESSION_ID[1:-1])
_unique_id = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_idempotency_key = re.compile(IDEMPOTENCY_KEY[1:-1])


def is_component_id(text: str) -> bool:
    """Return True if `text` is a valid id in the configuration."""
    return _component_id.fullmatch(text) is not None


def is_session_id(text: str) -> bool:
    """Return True if a client may choose this session id."""
    return _session_id.fullmatch(text) is not None


def is_idempotency_key(text: str) -> bool:
    """Return True if a client may use this idempotency key."""
    return _idempotency_key.fullmatch(text) is not None


def is_unique_id(text: str) -> bool:
    """Return True for a text of the form of `new_id`."""
    return _unique_id.fullmatch(text) is not None


def new_id() -> str:
    """Return a new UUIDv7 (RFC 9562 5.7): 48 bits of milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(_random_bytes(), "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # the version: 7
    value = value & ~(0x3 << 62) | 0x2 << 62  # the variant: binary 10
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_RANDOM_BYTES = 10
_POOL_SIZE = 256
_random_pool: list[bytes] = []


def _random_bytes() -> bytes:
    """Return random bytes, read from the system for 256 ids at once, because the read is slow."""
    try:
        return _random_pool.pop()
    except IndexError:
        pool = os.urandom(_RANDOM_BYTES * _POOL_SIZE)
        pieces = [pool[at : at + _RANDOM_BYTES] for at in range(0, len(pool), _RANDOM_BYTES)]
        _random_pool.extend(pieces[1:])
        return pieces[0]


# A forked process must not create the ids of its parent.
os.register_at_fork(after_in_child=_random_pool.clear)


def lower_bound_id(milliseconds: int) -> str:
    """Return a text that every id of `new_id` from a time on follows, in the order of text.

    Args:
        milliseconds: the time since the epoch, UTC.
    """
    text = f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}"
    return f"{text[:8]}-{text[8:]}"


INTEGERS = range(-(2**63), 2**63)
"""Integers of the columns of a database: signed, of 64 bits."""

JSON_INTEGERS = range(-(2**63), 2**64)
"""Integers in free-form JSON values: orjson, which reads and writes them, has no larger ones."""

HOLDS_LARGE_INTEGER = "holds an integer of more than 64 bits; send it as a text"
"""The error of a value with another integer, to follow its name."""

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
    problem = find_json_problem(value)
    if problem:
        raise ValidationFailed(f"{name} {problem}")


def dump_checked_json(name: str, value: Any, limit: int | None = None) -> str | None:
    """Return the JSON text of a value of a caller, None if the value is None.

    Args:
        limit: maximum size in bytes; None without one.

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
    """Return the reason why a value cannot be stored as JSON; None if it can be stored.

    The reason is a clause that follows the name of the value: it has a text as in `check_text`, an
    integer of more than 64 bits, more than `MAXIMUM_DEPTH` levels, or something that JSON does not
    have, such as NaN or a date.
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
            else:
                problem = _find_problem_of_scalar(item)
                if problem:
                    return problem

        if not inner:
            return None

        level = inner
    return f"nests deeper than {MAXIMUM_DEPTH} levels"


def _find_problem_of_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return None if is_storable(value) else UNSTORABLE
    if isinstance(value, int):
        return None if value in JSON_INTEGERS else HOLDS_LARGE_INTEGER
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
