"""The memory of large responses that are under way.

A large response is built whole and stays in memory until its client has read it. Clients that read
slowly, or not at all, would otherwise collect any number of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from agentctl.errors import Unavailable

LARGE_BYTES = 262_144
"""Size from which a response counts, and in parts of which it is sent."""


class ResponseBudget:
    """The bytes of large responses of one process.

    One caller can use half of them, so that it does not stop the large responses of others.

    Args:
        limit: `limits.response_bytes`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._used_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, owner: str, size: int) -> Iterator[None]:
        """Count a response while the block sends it.

        Args:
            owner: the caller.
            size: bytes of the response; one that is larger than the limit is sent alone.

        Raises:
            Unavailable: too many bytes are under way.
        """
        own = self._used_by[owner]
        if (own and own + size > self._limit // 2) or (
            self._used and self._used + size > self._limit
        ):
            raise Unavailable(
                "Too many large responses are under way", hint="read them first, then try again"
            )
        self._used += size
        self._used_by[owner] += size
        try:
            yield
        finally:
            self._used -= size
            self._used_by[owner] -= size
            if not self._used_by[owner]:
                del self._used_by[owner]
