"""The log of a server: the handler, the formatters, and the records of the access log.

One event is one line: control characters are escaped, and only a traceback has separate lines,
indented, in the readable format. Each line is one system call, so that lines of several processes
do not mix (decision 34).
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
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from agentctl.config.telemetry import Log
from agentctl.records.logs import current_log_context
from agentctl.records.text import cut_text, escape_controls, replace_unstorable

FIELDS_ATTRIBUTE = "fields"
"""Attribute of a log record with further fields of its line, by name."""

MAXIMUM_VALUE_LENGTH = 256
"""Maximum characters of a field that are written, because callers choose ids and names."""

FieldValue = str | int | float | None

MAXIMUM_TEXT_LENGTH = 65_536
"""Maximum characters of a message or a traceback that are written: code raises long texts."""

_UNQUOTED_VALUE = re.compile(r"[A-Za-z0-9._:@/+*~-]+")
_LIBRARY_LEVEL = logging.WARNING


def log_to_stderr(log: Log, *, with_process_id: bool = False) -> None:
    """Send the log to stderr, unless the program has configured logging before.

    Log lines of libraries start at the level warning, because some log their arguments.

    Args:
        log: format and level.
        with_process_id: True if several processes write to the same stderr.
    """
    root = logging.getLogger()
    if root.handlers:
        return

    level = getattr(logging, log.level.upper())
    process_id = os.getpid() if with_process_id else None
    formatter = _JsonFormatter if log.format == "json" else _TextFormatter
    handler = _StderrHandler()
    handler.setFormatter(formatter(process_id))
    root.addHandler(handler)
    root.setLevel(max(level, _LIBRARY_LEVEL))
    logging.getLogger("agentctl").setLevel(level)


class _StderrHandler(logging.Handler):
    """Writes each line to stderr with one system call."""

    def __init__(self) -> None:
        super().__init__()
        self._number: int | None = None
        with contextlib.suppress(OSError, AttributeError, io.UnsupportedOperation):
            self._number = sys.stderr.fileno()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return

        # A closed stderr is not an error: the work continues.
        with contextlib.suppress(OSError, ValueError):
            if self._number is None:
                # A test, or a program, has replaced it by an object without a descriptor.
                sys.stderr.write(line)
                return

            # A pipe may take a part of a long line.
            rest = line.encode("utf-8", "backslashreplace")
            while rest:
                rest = rest[os.write(self._number, rest) :]


class _LineFormatter(logging.Formatter):
    """The base of both formatters; `process` is an id on each line."""

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = process
        self._second = -1
        self._shown = ""

    def _format_time(self, created: float) -> str:
        """Return a time as RFC 3339, UTC, with milliseconds. The last second is cached."""
        second = int(created)
        # A copy: another thread may replace it meanwhile.
        text = self._shown
        if second != self._second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._shown = text
            self._second = second
        return f"{text}.{int((created - second) * 1_000):03d}Z"

    def formatException(self, ei: Any) -> str:  # noqa: N802  (a method of logging)
        """Return a traceback, cut to `MAXIMUM_TEXT_LENGTH`."""
        remaining_length = MAXIMUM_TEXT_LENGTH
        pieces = []
        for piece in traceback.TracebackException(*ei, compact=True).format():
            pieces.append(cut_text(piece, remaining_length))
            remaining_length -= len(pieces[-1])
            if remaining_length <= 0:
                break
        return "".join(pieces).removesuffix("\n")

    def _format_message(self, record: logging.LogRecord) -> str:
        return cut_text(record.getMessage(), MAXIMUM_TEXT_LENGTH)

    def _format_traceback(self, record: logging.LogRecord) -> str:
        text = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join(filter(None, [text, record.stack_info]))


def _collect_fields(record: logging.LogRecord) -> dict[str, FieldValue]:
    """Return the fields of a line: of its record, and of the log context."""
    more: Mapping[str, FieldValue] = getattr(record, FIELDS_ATTRIBUTE, {})
    fields: dict[str, FieldValue] = {**more, **current_log_context()}
    for name, value in fields.items():
        if isinstance(value, str) and len(value) > MAXIMUM_VALUE_LENGTH:
            fields[name] = value[:MAXIMUM_VALUE_LENGTH] + "…"
    return fields


class _TextFormatter(_LineFormatter):
    """Readable lines: `2026-11-20T15:46:44.123Z WARNING agentctl.runs: message (run_id=...)`."""

    def format(self, record: logging.LogRecord) -> str:
        process = "" if self._process is None else f" [{self._process}]"
        line = (
            f"{self._format_time(record.created)} {record.levelname}{process} {record.name}: "
            f"{escape_controls(self._format_message(record))}"
        )

        fields = _collect_fields(record)
        texts = {name: str(value) for name, value in fields.items() if value is not None}
        # Most lines need no quotes: all values are compared at once.
        if texts and not _UNQUOTED_VALUE.fullmatch("".join(texts.values())):
            for name, text in texts.items():
                if not _UNQUOTED_VALUE.fullmatch(text):
                    texts[name] = json.dumps(escape_controls(text), ensure_ascii=False)
        if texts:
            line += f" ({' '.join([f'{name}={text}' for name, text in texts.items()])})"

        raised = escape_controls(self._format_traceback(record), lines=True)
        if not raised:
            return line
        return f"{line}\n{raised}".replace("\n", "\n    ")


class _JsonFormatter(_LineFormatter):
    """JSON lines in ASCII. They begin with `time`, `level`, `logger` and `message`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, FieldValue] = {
            "time": self._format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._format_message(record),
        }
        if self._process is not None:
            line["process"] = self._process
        line.update(_collect_fields(record))
        raised = self._format_traceback(record)
        if raised:
            line["exception"] = raised

        # Most lines are ASCII, which orjson writes faster. It refuses lone
        # surrogates with a TypeError.
        with contextlib.suppress(TypeError):
            text = orjson.dumps(line)
            if text.isascii() and b"\x7f" not in text:
                return text.decode("ascii")

        # The rest is escaped by the library of Python, as orjson writes UTF-8 only.
        fields = {
            name: replace_unstorable(value) if isinstance(value, str) else value
            for name, value in line.items()
        }
        return json.dumps(fields, separators=(",", ":")).replace("\x7f", "\\u007f")


class FinishedRequest(NamedTuple):
    """A finished request, or one whose client has disconnected."""

    operation: str | None
    """Operation id; None for an unknown path."""

    method: str
    """The method as the client sent it, which may be an unknown word."""

    status: int | None
    """Status of the response; None if the client disconnected before it."""

    seconds: float
    """Time from the head to the end of the response; for a stream, to the end of the run."""

    principal: str | None

    via: str = "http"
    """`http`, as in the audit log."""


RequestObserver = Callable[[FinishedRequest], None]
