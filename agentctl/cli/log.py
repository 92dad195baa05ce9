"""The log of work that is done locally: nothing of it is said twice, and never a traceback."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentctl.cli.show.terminal import note

__all__ = ["LocalLog", "LogEntry", "capturing_log", "discard_log"]

_RUN_LOGGERS = ("agentctl.runtime", "agentctl.runs")
"""What these say of a run that fails is for the logs of servers: here the error says it."""

_STORE_LOGGER = "agentctl.store"
"""What a driver raised: the error that comes of it is told as such."""

_RUN_ERROR_LINE = re.compile(r"run \S+ failed: [A-Z_]+: ")
_RUN_PREFIX = re.compile(r"^run \S+(?:: | failed inside: )")


class LogEntry(NamedTuple):
    """What was logged of the work of a run: one line, and the exception that it was about."""

    text: str
    error: BaseException | None


class LocalLog(logging.Handler):
    """Warnings and worse become notes; those about the work of runs are kept until it ended."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[LogEntry] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take one; what the record of the run says as well is left out."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if record.name == _STORE_LOGGER:
            note(f"note: {text}")
        elif record.name not in _RUN_LOGGERS:
            note(f"{record.levelname.lower()}: {text}")
        elif not _RUN_ERROR_LINE.match(text):
            self._kept.append(
                LogEntry(text if error is None else f"{text}: {_one_line(error)}", error)
            )

    def reason(self) -> LogEntry | None:
        """The last that was kept: why a run failed, as only its operator may know it.

        What was kept is forgotten: whoever asks is to say it.
        """
        last = self._kept[-1] if self._kept else None
        self._kept.clear()
        return last and last._replace(text=_RUN_PREFIX.sub("", last.text))

    def tell(self) -> None:
        """Say what was kept and nobody asked for: a run may go well where a tool failed."""
        for kept in self._kept:
            note(f"warning: {kept.text}")
        self._kept.clear()


@contextmanager
def capturing_log() -> Iterator[LocalLog]:
    """Take the log while the block lasts."""
    log, root = LocalLog(), logging.getLogger()
    root.addHandler(log)
    try:
        yield log
    finally:
        root.removeHandler(log)
        log.tell()


def discard_log() -> None:
    """Keep the log to itself, for a command that tells of each failure by itself."""
    logging.getLogger("agentctl").addHandler(logging.NullHandler())


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
