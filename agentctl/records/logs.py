"""The ids of a request or run: the ids on its log lines, and the ids of its W3C trace.

The id of a span follows from the run, so any process can name the span of a run or of one of its
calls without a message from the process that executes it. Nothing here needs OpenTelemetry.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import blake2b
from typing import NamedTuple

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
    """A logger that writes equal lines at most once in `PAUSE_SECONDS`. Thread-safe."""

    def __init__(self, logger: logging.Logger, *, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._logged_at: dict[str, float] = {}

    def log(self, message: str, *arguments: object, cause: BaseException | None = None) -> None:
        """Log a line, with the traceback of `cause` if given, unless an equal line was just logged.

        Lines are equal if `message % arguments` is equal.
        """
        line = message % arguments
        now = time.monotonic()
        if now - self._logged_at.get(line, float("-inf")) < PAUSE_SECONDS:
            return
        self._logged_at = {
            text: at for text, at in self._logged_at.items() if now - at < PAUSE_SECONDS
        }
        self._logged_at[line] = now
        self._logger.log(self._level, line, exc_info=cause)


_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_RANDOM_DIGITS = 14

caller_trace: ContextVar[TraceContext | None] = ContextVar("agentctl_caller_trace", default=None)
"""The span of the caller of the current request; None if it has none."""


class TraceContext(NamedTuple):
    """The place of a span: hexadecimal ids of 32 and 16 digits, and if the span is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


class RunTrace(NamedTuple):
    """The span of the first leg of a run."""

    own: TraceContext

    cause: TraceContext | None = None
    """The span that caused the run: its parent if both have the same trace, else the target of a
    link. None if there is no such span."""

    @property
    def text(self) -> str:
        """The form that the row and the specification of a run keep, see `parse_run_trace`."""
        cause = () if self.cause is None else (self.cause.traceparent,)
        return " ".join((self.own.traceparent, *cause))


def parse_traceparent(text: object) -> TraceContext | None:
    """Return the context of a `traceparent`; None if it is not valid (W3C Trace Context 3.2)."""
    match = _TRACEPARENT.fullmatch(text.strip(" \t")) if isinstance(text, str) else None
    if match is None:
        return None

    version, trace_id, span_id, flags, rest = match.groups()
    if (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def parse_run_trace(text: str | None) -> RunTrace | None:
    """Return the trace of a run from its kept form; None if it has none."""
    if not text:
        return None

    own, *causes = map(parse_traceparent, text.split())
    if own is None:
        return None
    return RunTrace(own, causes[0] if causes else None)


def build_run_trace(run_id: str, cause: TraceContext | None, *, sample: float) -> RunTrace:
    """Return a new trace for a run, with the id of the run.

    Args:
        cause: the span that the new one links to.
        sample: the part of the traces that are recorded, from 0 to 1. The random digits of the id
            decide (W3C Trace Context, level 2), so that every process decides alike.
    """
    trace_id = run_id.replace("-", "")
    is_sampled = int(trace_id[-_RANDOM_DIGITS:], 16) < sample * 16**_RANDOM_DIGITS
    return RunTrace(TraceContext(trace_id, first_span_id(run_id), is_sampled), cause)


def build_child_trace(run_id: str, parent: TraceContext) -> RunTrace:
    """Return the trace of a run below another span."""
    return RunTrace(parent._replace(span_id=first_span_id(run_id)), parent)


def build_leg_trace(run_id: str, attempt: int, first: TraceContext) -> RunTrace:
    """Return a new trace for a later leg of a root run, which links to its first one."""
    leg = f"{run_id}/{attempt}"
    own = first._replace(trace_id=_hash(leg, 16), span_id=_hash(leg, 8))
    return RunTrace(own, first)


def first_span_id(run_id: str) -> str:
    """Return the id of the span of the first leg of a run: the random half of its UUID."""
    return run_id.replace("-", "")[16:]


def derive_span_id(run_span_id: str, *parts: object) -> str:
    """Return the id of a span below the span of a run."""
    return _hash("/".join((run_span_id, *map(str, parts))), 8)


def _hash(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()
