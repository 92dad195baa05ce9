"""Log records of local work as notes on stderr, without repetitions and tracebacks."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentctl.cli.io import current_io
from agentctl.records.text import escape_controls

_RUN_LOGGERS = ("agentctl.runtime", "agentctl.runs")
"""Records of these about a failed run repeat the error that the command reports."""

_STORE_LOGGER = "agentctl.store"
"""Records about the database repeat the error that the command reports."""

_AUDIT_LOGGER = "agentctl.service.audit"
"""Records about entries that wait for the database: the command reports the database."""

_RUN_ERROR_LINE = re.compile(r"run \S+ failed: [A-Z_]+: ")
_RUN_PREFIX = re.compile(r"^run \S+(?:: | failed inside: )")


class LogEntry(NamedTuple):
    """One line of the log about a run, and the exception in it."""

    text: str
    error: BaseException | None


class LocalLog(logging.Handler):
    """A handler that notes warnings and errors; those about runs it keeps until the run ends."""

    def __init__(self) -> None:
        # A record can come from a thread, which has no current IO.
        self._io = current_io()
        super().__init__(logging.DEBUG if self._io.verbose else logging.WARNING)
        self._kept: list[LogEntry] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note or keep a record; drop a record that repeats the error of the run."""
        text = record.getMessage()
        failure: BaseException | None = getattr(record, "failure", None)
        error = record.exc_info[1] if record.exc_info else failure

        if record.levelno < logging.WARNING:
            self._io.note(escape_controls(text), style="dim")
        elif record.name == _AUDIT_LOGGER:
            return
        elif record.name == _STORE_LOGGER:
            self._note(f"note: {text}")
        elif record.name not in _RUN_LOGGERS:
            self._note(f"{record.levelname.lower()}: {text}")
        elif not _RUN_ERROR_LINE.match(text):
            if error is not None:
                text += ": " + " ".join(f"{type(error).__name__}: {error}".split())
            self._kept.append(LogEntry(text, error))

    def take_last(self) -> LogEntry | None:
        """Return the last kept entry, the private reason of a failed run, and drop all of them."""
        if not self._kept:
            return None
        last = self._kept[-1]
        self._kept.clear()
        return last._replace(text=_RUN_PREFIX.sub("", last.text))

    def flush_kept(self) -> None:
        """Note the kept entries that were not taken, such as a failed tool in a successful run."""
        for kept in self._kept:
            self._note(f"warning: {kept.text}")
        self._kept.clear()

    def _note(self, text: str) -> None:
        self._io.note(escape_controls(text))


@contextmanager
def capturing_log() -> Iterator[LocalLog]:
    """Send the log to a `LocalLog` within the block."""
    log = LocalLog()
    root_logger = logging.getLogger()
    own_logger = logging.getLogger("agentctl")

    previous_level = own_logger.level
    if current_io().verbose:
        own_logger.setLevel(logging.DEBUG)
    root_logger.addHandler(log)
    try:
        yield log
    finally:
        root_logger.removeHandler(log)
        own_logger.setLevel(previous_level)
        log.flush_kept()


def discard_log() -> None:
    """Drop log records, for a command that reports each failure itself."""
    logging.getLogger("agentctl").addHandler(logging.NullHandler())
