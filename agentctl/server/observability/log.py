"""The log of a server: where it goes, and how a line of it reads.

One event is one line, whatever is in it: control characters are written out, and only a traceback
follows on lines of its own, set in, where people read it. Each line is one write, so that lines of
several processes do not get into each other.

Finished requests: what is told of each, and the line of the log that it gets.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import orjson

from agentctl.records.log_context import about
from agentctl.records.text import clean, printable

if TYPE_CHECKING:
    from agentctl.config.settings import Log

__all__ = ["FIELDS", "Finished", "Watcher", "log_access", "log_to_stderr"]

FIELDS = "fields"
"""Attribute of a log record that has more fields for its line, by name."""

LONGEST_VALUE = 256
"""Characters of a field that are written: ids and names are given by callers."""

Field = str | int | float | None

_PLAIN = re.compile(r"[A-Za-z0-9._:@/+*~-]+")
_FOREIGN = logging.WARNING


def log_to_stderr(log: Log, *, one_of_many: bool = False) -> None:
    """Send the log to stderr, unless the program has already said where it goes.

    Libraries are heard from warnings on, whatever the level: some tell what they are given.

    Args:
        log: form and level.
        one_of_many: other processes write there as well: each line has the process's id.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    level = getattr(logging, log.level.upper())
    handler = _Lines()
    process = os.getpid() if one_of_many else None
    handler.setFormatter((_Json if log.format == "json" else _Readable)(process))
    root.addHandler(handler)
    root.setLevel(max(level, _FOREIGN))
    logging.getLogger("agentctl").setLevel(level)
    # What no line shows need not be found out for each.
    logging.logThreads = logging.logMultiprocessing = False


class _Lines(logging.Handler):
    """Writes each line to stderr with one system call."""

    def __init__(self) -> None:
        super().__init__()
        self._number: int | None = None
        with contextlib.suppress(OSError, AttributeError, io.UnsupportedOperation):
            self._number = sys.stderr.fileno()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Whoever was to read it may be gone, and the work goes on."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        with contextlib.suppress(OSError, ValueError):
            self._write(line)

    def _write(self, line: str) -> None:
        if self._number is None:
            sys.stderr.write(line)
            return
        rest = line.encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(self._number, rest) :]


class _Form(logging.Formatter):
    """What both forms have in common.

    Args:
        process: the id that each line is to have, or None.
    """

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = process
        self._second = -1
        self._shown = ""

    def _time(self, created: float) -> str:
        """RFC 3339, UTC, in milliseconds."""
        second = int(created)
        shown = self._shown
        if second != self._second:
            shown = self._shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{shown}.{int((created - second) * 1_000):03d}Z"

    def _traceback(self, record: logging.LogRecord) -> str:
        said = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join(filter(None, [said, record.stack_info]))


def _fields(record: logging.LogRecord) -> dict[str, Field]:
    """What a line has beside its message: of the event itself, and what it is about."""
    more: Mapping[str, Field] = getattr(record, FIELDS, {})
    found: dict[str, Field] = {**more, **about()}
    for name, value in found.items():
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            found[name] = value[:LONGEST_VALUE] + "…"
    return found


class _Readable(_Form):
    """For people: `2026-11-20T15:46:44.123Z WARNING agentctl.runs: message (run_id=...)`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and set in below it the traceback, if there is one."""
        process = "" if self._process is None else f" [{self._process}]"
        told = _told(_fields(record))
        line = (
            f"{self._time(record.created)} {record.levelname}{process} {record.name}: "
            f"{printable(record.getMessage())}"
        )
        line += f" ({told})" if told else ""
        traceback = printable(self._traceback(record), lines=True)
        return f"{line}\n{traceback}".replace("\n", "\n    ") if traceback else line


def _told(fields: Mapping[str, Field]) -> str:
    """Fields as `name=value`, in quotes where a value could be taken for the next field."""
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    if texts and not _PLAIN.fullmatch("".join(texts.values())):
        texts = {name: _quoted(text) for name, text in texts.items()}
    return " ".join([f"{name}={text}" for name, text in texts.items()])


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(printable(text), ensure_ascii=False)


class _Json(_Form):
    """For programs: one object a line, ASCII only. `time`, `level`, `logger` and `message` are
    always there, in this order.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said: dict[str, Field] = {
            "time": self._time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process is not None:
            said["process"] = self._process
        said.update(_fields(record))
        if traceback := self._traceback(record):
            said["exception"] = traceback
        return _json(said)


def _json(said: dict[str, Field]) -> str:
    with contextlib.suppress(TypeError):
        text = orjson.dumps(said)
        if text.isascii() and b"\x7f" not in text:
            return text.decode("ascii")
    kept = {name: clean(value) if isinstance(value, str) else value for name, value in said.items()}
    return json.dumps(kept, separators=(",", ":")).replace("\x7f", "\\u007f")


_log = logging.getLogger("agentctl.access")


class Finished(NamedTuple):
    """A request that was answered, or whose client is gone.

    Attributes:
        operation: its operation id; None: it asked for none that there is.
        method: as it was sent, which may be no method at all.
        status: of the answer; None: the client went away before it.
        seconds: from its head to the end of the answer, which of a stream is the end of the run.
        principal: who really called; None: nobody was identified.
        via: the door.
    """

    operation: str | None
    method: str
    status: int | None
    seconds: float
    principal: str | None
    via: str = "http"


Watcher = Callable[[Finished], None]


def log_access(request: Finished) -> None:
    """Write a line, at the level `info`. What the request was about is on it as on every line.

    The path is not told, since it has what callers put there; the operation has its own name.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    # Made by hand: finding out where in the code this is takes longer than all the rest.
    record = logging.LogRecord(_log.name, logging.INFO, "", 0, "request finished", None, None)
    fields = {
        "operation": request.operation,
        "method": request.method,
        "status": request.status,
        "duration_ms": round(request.seconds * 1_000, 3),
        "via": request.via,
    }
    setattr(record, FIELDS, fields)
    _log.handle(record)
