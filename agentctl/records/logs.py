"""Log lines: the ids that every line of a request or run carries, and lines that do not repeat."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar

_EMPTY: Mapping[str, str] = {}

_context: ContextVar[dict[str, str] | None] = ContextVar("agentctl_log_context", default=None)


def current_log_context() -> Mapping[str, str]:
    """Return the known ids by name: `request_id`, `principal`, `session_id`, `run_id`."""
    return _context.get() or _EMPTY


def set_log_context(**known: str) -> None:
    """Replace the log context at the start of a request or run."""
    _context.set(known)


def add_log_context(**known: str) -> None:
    """Add ids for all tasks that share the context; without a context, do nothing."""
    current = _context.get()
    if current is not None:
        current.update(known)


def extend_log_context(**known: str) -> None:
    """Set a copy of the context with more ids, for the current task only."""
    _context.set({**current_log_context(), **known})


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
