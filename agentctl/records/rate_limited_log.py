"""A log that does not repeat the same line within a time span."""

from __future__ import annotations

import logging
import time

PAUSE_SECONDS = 60.0
"""Seconds in which an equal line is not logged again."""


class RateLimitedLog:
    """A logger that writes equal lines at most once in `pause` seconds. Thread-safe.

    Args:
        pause: seconds between two equal lines.
    """

    def __init__(
        self, logger: logging.Logger, *, level: int = logging.WARNING, pause: float = PAUSE_SECONDS
    ) -> None:
        self._logger = logger
        self._level = level
        self._pause = pause
        self._logged_at: dict[str, float] = {}

    def log(self, message: str, *arguments: object, cause: BaseException | None = None) -> None:
        """Log a line, with the traceback of `cause` if given, unless an equal line was just logged.

        Lines are equal if `message % arguments` is equal.
        """
        line = message % arguments
        now = time.monotonic()
        if now - self._logged_at.get(line, float("-inf")) < self._pause:
            return
        self._logged_at = {
            text: at for text, at in self._logged_at.items() if now - at < self._pause
        }
        self._logged_at[line] = now
        self._logger.log(self._level, line, exc_info=cause)
