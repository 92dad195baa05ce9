"""Child processes that are forks of the test: they need no interpreter and no imports."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["start_child", "wait_for_child"]


def start_child(work: Callable[[], object]) -> int:
    """Call a function in a child process, and return the id of the process.

    The child ends after the call as a killed process does: it closes and writes nothing. Its exit
    code is 0, or 1 if the call has raised an exception.
    """
    child = os.fork()
    if child != 0:
        return child

    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def wait_for_child(child: int) -> int:
    """Wait for the end of a child process and return its exit code."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
