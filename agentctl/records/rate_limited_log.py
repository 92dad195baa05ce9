"""Logging what goes wrong again and again, without filling the log with it."""

from __future__ import annotations

import logging
import time

__all__ = ["RateLimitedLog"]

PAUSE_SECONDS = 60.0
"""How long the same complaint is not made again."""


class RateLimitedLog:
    """Makes each complaint at most once in `PAUSE_SECONDS`, from any thread.

    Args:
        log: where to.
        level: as what.
        pause: seconds of silence between two that are the same.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        level: int = logging.WARNING,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._log = log
        self._level = level
        self._pause = pause
        self._made: dict[str, float] = {}

    def make(self, message: str, *arguments: object, cause: BaseException | None = None) -> None:
        """Log it, with the traceback of `cause` if one is given, unless it was just made.

        Complaints are the same when `message` and `arguments` are.
        """
        said = message % arguments
        now = time.monotonic()
        if now - self._made.get(said, float("-inf")) < self._pause:
            return
        self._made = {text: at for text, at in self._made.items() if now - at < self._pause}
        self._made[said] = now
        self._log.log(self._level, said, exc_info=cause)
