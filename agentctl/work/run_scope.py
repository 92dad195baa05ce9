"""The run whose code the current task or thread executes.

Everything that the code of a run starts belongs to the run (docs/cancellation.md "What can hang").
What all runs share is started outside of them, with `outside_run`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

current_scope: ContextVar[Any] = ContextVar("agentctl_scope", default=None)
"""The `CodeScope` of the current code of a run; None in the code of the server."""

current_threads: ContextVar[Threads | None] = ContextVar("agentctl_threads", default=None)
"""The threads of the current run; None outside of runs."""


class Threads(Protocol):
    """The threads of the default executor that work for a run."""

    def start(self, function: Callable[[], Any]) -> Future[Any]: ...


class CurrentCall(NamedTuple):
    """The tool call or the step that the current task executes, by the id of its span."""

    id: str
    name: str


current_call: contextvars.ContextVar[CurrentCall | None]
current_call = contextvars.ContextVar("current_call", default=None)


@contextmanager
def outside_run() -> Iterator[None]:
    """Start tasks, threads and child processes that do not belong to the current run.

    For what all runs of a process share and the first one starts: a connection, a browser, a queue
    with a worker. A cancel does not end it, no record names it, and it ends with the process.
    """
    scope = current_scope.set(None)
    threads = current_threads.set(None)
    try:
        yield
    finally:
        current_threads.reset(threads)
        current_scope.reset(scope)
