"""What the work at hand is about: the ids that each line of the log carries.

They stand in a context variable, so they follow a request or a run into the tasks and threads that
work for it. Nothing is done with them until a line is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

__all__ = ["add_log_context", "current_log_context", "extend_log_context", "set_log_context"]

_EMPTY: Mapping[str, str] = {}

_context: ContextVar[dict[str, str] | None] = ContextVar("agentctl_about", default=None)


def current_log_context() -> Mapping[str, str]:
    """The ids by name: `request_id`, `principal`, `session_id`, `run_id`, as far as known."""
    return _context.get() or _EMPTY


def set_log_context(**known: str) -> None:
    """Something new begins in this context: what was known before is about something else."""
    _context.set(known)


def add_log_context(**known: str) -> None:
    """More is known now, to all that works on the same; nothing where nothing has begun."""
    current = _context.get()
    if current is not None:
        current.update(known)


def extend_log_context(**known: str) -> None:
    """A part begins, in a task of its own: it is about the same, and about this beside."""
    _context.set({**current_log_context(), **known})
