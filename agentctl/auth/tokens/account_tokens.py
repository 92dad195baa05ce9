"""Service account tokens: `<prefix>_pat_`, 256 random bits and a checksum.

Only the prefix decides the kind of a credential: a token that starts with `<prefix>_pat_` is never
parsed as a JWT, and any other token is never looked up. The checksum proves nothing. It detects
tokens that are cut off, mistyped or invented without a query of the database, and lets secret
scanners find tokens in source code. docs/contract.md "Service accounts" has the format.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib

from agentctl.errors import InvalidToken

HINT_CHARACTERS = 4
"""The number of last characters that are stored as a hint; they belong to the checksum."""

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_BYTES = 32
_SECRET_WIDTH = 43
"""Base62 digits of the largest 256-bit number; every token has this number of digits."""

_CHECK_WIDTH = 6
"""Base62 digits of the largest 32-bit number."""

_BODY_PATTERN = re.compile(rf"[0-9A-Za-z]{{{_SECRET_WIDTH + _CHECK_WIDTH}}}")
_PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9]{0,30}_pat_")


def account_token_prefix(prefix: str) -> str:
    """Return the start of service account tokens for `authorization.token_prefix`."""
    return f"{prefix}_pat_"


def is_account_token(token: str) -> bool:
    """Return True for a service account token of any deployment."""
    return _PREFIX_PATTERN.match(token) is not None


def generate_account_token(prefix: str) -> str:
    secret = int.from_bytes(os.urandom(_SECRET_BYTES), "big")
    body = account_token_prefix(prefix) + _base62(secret, _SECRET_WIDTH)
    return body + _checksum(body)


def has_valid_checksum(token: str) -> bool:
    """Return True if the last six characters of a token are its checksum."""
    start = _PREFIX_PATTERN.match(token)
    if start is None or _BODY_PATTERN.fullmatch(token, start.end()) is None:
        return False
    return _checksum(token[:-_CHECK_WIDTH]) == token[-_CHECK_WIDTH:]


def check_account_token(token: str) -> None:
    """Run the check `account.form`: length, alphabet and checksum of a service account token.

    Raises:
        InvalidToken: one of them is wrong.
    """
    if not has_valid_checksum(token):
        reason = "the service account token is cut off or mistyped: its checksum is wrong"
        raise InvalidToken(reason, check="account.form")


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token, by which the database stores and finds it.

    A token has 256 random bits, so it needs neither a salt nor a slow hash.
    """
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CHECK_WIDTH)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
