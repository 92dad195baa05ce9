"""Strict decoders of base64url and JSON from callers: one text for one value.

PyJWT accepts `=` padding and UTF-16. With two texts for one token, a raw token could not serve as
a cache key. RFC 7515 2 and RFC 7519 4 allow a server to reject all lax forms (decision 137).
"""

from __future__ import annotations

import base64
import codecs
import json
import math
import re
from typing import Any, NoReturn

MAXIMUM_DEPTH = 8
"""Levels of a token or a key file; parsers recurse (docs/internals/security-cases.md J13)."""

_MAXIMUM_DIGITS = 64
"""Characters of a number: the time to parse an integer grows with the square of its digits."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

JSON_STRING = r'"[^"\\]*+(?:(?s:\\.)[^"\\]*+)*+"?'
"""The pattern of a JSON string. Possessive, with an optional end: any text, also one with unclosed
strings, needs one pass, and no memory for backtracking."""

MAXIMUM_VALUES = 65_536
"""Maximum number of values in one JSON document of a peer, such as an MCP message or the arguments
of tool calls."""

_STRINGS = re.compile(JSON_STRING.encode())


class NotStrict(ValueError):
    """Raised for a text that breaks a rule. The message never repeats the input."""


def decode_base64url(text: str) -> bytes:
    """Decode an unpadded base64url text (RFC 7515 2).

    Raises:
        NotStrict: it has other characters, padding, white space, or unused bits that are not zero.
    """
    if _BASE64URL.fullmatch(text) is None:
        raise NotStrict("has characters outside base64url")
    if len(text) % 4 == 1:
        raise NotStrict("is cut off")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode_base64url(data) != text:
        raise NotStrict("is not the canonical base64url of its bytes")
    return data


def encode_base64url(data: bytes) -> str:
    """Encode `data` as unpadded base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def parse_json(text: str) -> Any:
    """Parse one JSON value (RFC 8259), as deep as the interpreter can.

    Raises:
        NotStrict: not JSON, a duplicate member, NaN, or a float that is out of range.
    """
    return _parse(text, _decoder)


def find_object(text: str) -> dict[str, Any] | None:
    """Return the object whose JSON text this is, None for any other text."""
    try:
        value = parse_json(text)
    except NotStrict:
        return None
    return value if isinstance(value, dict) else None


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse one JSON object in UTF-8, of a token or a key file.

    Raises:
        NotStrict: as `parse_json`; no UTF-8, a byte order mark, a number of more than 64
            characters, more levels than MAXIMUM_DEPTH, or not an object.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise NotStrict("is not UTF-8") from None
    _check_depth(text)
    value = _parse(text, _bounded_decoder)
    if not isinstance(value, dict):
        raise NotStrict("is not a JSON object")
    return value


def parse_document(data: bytes) -> dict[str, Any]:
    """Parse a JSON document that another program wrote, such as a JWKS.

    As `parse_object`, but a byte order mark in front is ignored (RFC 8259 8.1): editors and
    PowerShell write one.

    Raises:
        NotStrict: as `parse_object`.
    """
    return parse_object(data.removeprefix(codecs.BOM_UTF8))


def _parse(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except NotStrict:
        raise
    except (ValueError, RecursionError):
        raise NotStrict("is not JSON") from None


def _check_depth(text: str) -> None:
    if text.count("{") + text.count("[") <= MAXIMUM_DEPTH:
        return

    depth = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(JSON_STRING, "", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > MAXIMUM_DEPTH:
            raise NotStrict(f"is nested deeper than {MAXIMUM_DEPTH} levels")


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object with unique member names, compared without escapes (RFC 7515 4)."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotStrict("names a member twice")
    return members


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotStrict("has a number that is too large")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise NotStrict("has a number that JSON does not know")


def _bound(digits: str) -> str:
    if len(digits) > _MAXIMUM_DIGITS:
        raise NotStrict("has a number that is too long")
    return digits


_decoder = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_names,
    parse_float=_parse_float,
    parse_constant=_reject_constant,
)
_bounded_decoder = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_names,
    parse_int=lambda digits: int(_bound(digits)),
    parse_float=lambda digits: _parse_float(_bound(digits)),
    parse_constant=_reject_constant,
)


def has_too_many_values(document: bytes) -> bool:
    """Return True if a JSON document has more than `MAXIMUM_VALUES` values, without parsing it.

    Each value takes the parser, the validation and the conversion some microseconds. A document
    that is not JSON is counted in the same way.
    """
    if len(document) <= MAXIMUM_VALUES or _count_values(document) <= MAXIMUM_VALUES:
        return False
    # A string is a value or a name, so half of them are values, or they are escaped quotes.
    if document.count(b'"') - document.count(b'\\"') > 4 * MAXIMUM_VALUES + 4:
        return True
    return _count_values(_STRINGS.sub(b"", document)) > MAXIMUM_VALUES


def _count_values(document: bytes) -> int:
    return sum(map(document.count, (b",", b"[", b"{")))
