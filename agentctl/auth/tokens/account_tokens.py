"""The tokens of service accounts: `<prefix>_pat_`, 256 random bits, a checksum (contract.md 6).

Which kind of credential a token is, its first characters say and nothing else: what begins with
`<prefix>_pat_` is never read as a JWT, and what does not is never looked up. The checksum is no
secret and no proof. It tells what was cut off, mistyped or made up from what may be a token,
without a look into the database, and lets scanners of sources find tokens that were left there.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib

from agentctl.errors import InvalidToken

__all__ = [
    "HINT_CHARACTERS",
    "account_token_prefix",
    "check_account_token",
    "generate_account_token",
    "has_valid_checksum",
    "hash_token",
    "is_account_token",
]

HINT_CHARACTERS = 4
"""The last ones of a token are kept to tell tokens apart: they are of the checksum."""

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_BYTES = 32
_SECRET_WIDTH = 43
"""Digits to the base 62 of the largest number of 256 bits; every token has so many."""

_CHECK_WIDTH = 6
"""The same of 32 bits."""

_BODY_PATTERN = re.compile(rf"[0-9A-Za-z]{{{_SECRET_WIDTH + _CHECK_WIDTH}}}")
_PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9]{0,30}_pat_")


def account_token_prefix(prefix: str) -> str:
    """How the tokens of service accounts begin, with `authorization.token_prefix` as given."""
    return f"{prefix}_pat_"


def is_account_token(token: str) -> bool:
    """Whether a credential is one of a service account, of whatever deployment."""
    return _PREFIX_PATTERN.match(token) is not None


def generate_account_token(prefix: str) -> str:
    """A token that nobody has had before."""
    secret = int.from_bytes(os.urandom(_SECRET_BYTES), "big")
    body = account_token_prefix(prefix) + _base62(secret, _SECRET_WIDTH)
    return body + _checksum(body)


def has_valid_checksum(token: str) -> bool:
    """Whether the end of a token is the checksum of what stands before it."""
    start = _PREFIX_PATTERN.match(token)
    if start is None or _BODY_PATTERN.fullmatch(token, start.end()) is None:
        return False
    return _checksum(token[:-_CHECK_WIDTH]) == token[-_CHECK_WIDTH:]


def check_account_token(token: str) -> None:
    """Step `account.form`: the token of a service account has its length, alphabet and checksum.

    Raises:
        InvalidToken: it has not.
    """
    if not has_valid_checksum(token):
        reason = "the service account's token is cut off or mistyped: its checksum is wrong"
        raise InvalidToken(reason, check="account.form")


def hash_token(token: str) -> str:
    """What is kept of a token, and looked for: its SHA-256. It has 256 random bits, so that no
    salt and no slow hash is needed.
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
