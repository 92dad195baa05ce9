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

from agentctl.records.log_context import current_log_context
from agentctl.records.text import escape_controls, replace_unstorable

if TYPE_CHECKING:
    from agentctl.config.settings import Log

__all__ = ["FIELDS_ATTRIBUTE", "FinishedRequest", "RequestObserver", "log_request", "log_to_stderr"]

FIELDS_ATTRIBUTE = "fields"
"""Attribute of a log record that has more fields for its line, by name."""

MAXIMUM_VALUE_LENGTH = 256
"""Characters of a field that are written: ids and names are given by callers."""

FieldValue = str | int | float | None

_UNQUOTED_VALUE = re.compile(r"[A-Za-z0-9._:@/+*~-]+")
_LIBRARY_LEVEL = logging.WARNING


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
    handler = _StderrHandler()
    process = os.getpid() if one_of_many else None
    handler.setFormatter((_JsonFormatter if log.format == "json" else _TextFormatter)(process))
    root.addHandler(handler)
    root.setLevel(max(level, _LIBRARY_LEVEL))
    logging.getLogger("agentctl").setLevel(level)
    # What no line shows need not be found out for each.
    logging.logThreads = logging.logMultiprocessing = False


class _StderrHandler(logging.Handler):
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


class _LineFormatter(logging.Formatter):
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


def _collect_fields(record: logging.LogRecord) -> dict[str, FieldValue]:
    """What a line has beside its message: of the event itself, and what it is about."""
    more: Mapping[str, FieldValue] = getattr(record, FIELDS_ATTRIBUTE, {})
    found: dict[str, FieldValue] = {**more, **current_log_context()}
    for name, value in found.items():
        if isinstance(value, str) and len(value) > MAXIMUM_VALUE_LENGTH:
            found[name] = value[:MAXIMUM_VALUE_LENGTH] + "…"
    return found


class _TextFormatter(_LineFormatter):
    """For people: `2026-11-20T15:46:44.123Z WARNING agentctl.runs: message (run_id=...)`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and set in below it the traceback, if there is one."""
        process = "" if self._process is None else f" [{self._process}]"
        told = _format_fields(_collect_fields(record))
        line = (
            f"{self._time(record.created)} {record.levelname}{process} {record.name}: "
            f"{escape_controls(record.getMessage())}"
        )
        line += f" ({told})" if told else ""
        traceback = escape_controls(self._traceback(record), lines=True)
        return f"{line}\n{traceback}".replace("\n", "\n    ") if traceback else line


def _format_fields(fields: Mapping[str, FieldValue]) -> str:
    """Fields as `name=value`, in quotes where a value could be taken for the next field."""
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    if texts and not _UNQUOTED_VALUE.fullmatch("".join(texts.values())):
        texts = {name: _quote_value(text) for name, text in texts.items()}
    return " ".join([f"{name}={text}" for name, text in texts.items()])


def _quote_value(text: str) -> str:
    return (
        text
        if _UNQUOTED_VALUE.fullmatch(text)
        else json.dumps(escape_controls(text), ensure_ascii=False)
    )


class _JsonFormatter(_LineFormatter):
    """For programs: one object a line, ASCII only. `time`, `level`, `logger` and `message` are
    always there, in this order.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said: dict[str, FieldValue] = {
            "time": self._time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process is not None:
            said["process"] = self._process
        said.update(_collect_fields(record))
        if traceback := self._traceback(record):
            said["exception"] = traceback
        return _encode_json(said)


def _encode_json(said: dict[str, FieldValue]) -> str:
    with contextlib.suppress(TypeError):
        text = orjson.dumps(said)
        if text.isascii() and b"\x7f" not in text:
            return text.decode("ascii")
    kept = {
        name: replace_unstorable(value) if isinstance(value, str) else value
        for name, value in said.items()
    }
    return json.dumps(kept, separators=(",", ":")).replace("\x7f", "\\u007f")


_log = logging.getLogger("agentctl.access")


class FinishedRequest(NamedTuple):
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


RequestObserver = Callable[[FinishedRequest], None]


def log_request(request: FinishedRequest) -> None:
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
    setattr(record, FIELDS_ATTRIBUTE, fields)
    _log.handle(record)
