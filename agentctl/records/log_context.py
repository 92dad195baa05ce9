"""The log context: the ids that every log line of a request or run carries.

A context variable has them, so they follow a request or run into its tasks and threads. They are
read only when a line is written.
"""

from __future__ import annotations

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
