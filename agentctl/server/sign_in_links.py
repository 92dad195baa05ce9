"""Links that sign in a page once: a short-lived code in place of the token of its creator.

The tokens are in the memory of this process only, by the hash of their code. So a link works with a
server of one process, and a restart ends it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import NamedTuple

LIFETIME_SECONDS = 60
"""Time after which a code is worth nothing."""

MAXIMUM_LINKS = 100
"""Maximum number of codes, each of a different token."""

_CODE_BYTES = 32


class _Link(NamedTuple):
    """The token that a code returns."""

    token: str

    deadline: float
    """A time of the monotonic clock, in seconds."""


class SignInLinks:
    """The codes that this process has given and that have not been used yet."""

    def __init__(self) -> None:
        self._links: dict[bytes, _Link] = {}

    def create(self, token: str) -> str:
        """Return a code for a token: 43 characters of base64url. It replaces an earlier code.

        If there are as many codes as one process keeps, the oldest one is forgotten.
        """
        now = time.monotonic()
        self._links = {
            digest: link
            for digest, link in self._links.items()
            if link.deadline > now and link.token != token
        }
        if len(self._links) >= MAXIMUM_LINKS:
            oldest = next(iter(self._links))
            del self._links[oldest]

        code = secrets.token_urlsafe(_CODE_BYTES)
        self._links[_hash(code)] = _Link(token, now + LIFETIME_SECONDS)
        return code

    def redeem(self, code: str) -> str | None:
        """Return the token of a code and forget both; None if it is unknown, used or too old."""
        link = self._links.pop(_hash(code), None)
        if link is None or link.deadline <= time.monotonic():
            return None
        return link.token


def _hash(code: str) -> bytes:
    # A lookup by the hash takes no time that tells something about a code.
    return hashlib.sha256(code.encode()).digest()
