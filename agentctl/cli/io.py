"""The streams of a command: one object, which tests replace with buffers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

__all__ = ["IO", "current_io", "using_io"]


@dataclass(eq=False, slots=True)
class IO:
    """The standard streams of a command, and the properties of the terminals that they are.

    The environment variables COLUMNS, NO_COLOR, TERM and AGENTCTL_NO_INPUT are read when a
    property is, so a test that sets them needs no other argument.

    Attributes:
        stdin, out, err: text streams with a `buffer`; data goes to `out`, all else to `err`.
        status_width: columns of the progress line that is on the screen, 0 without one.
    """

    stdin: TextIO
    out: TextIO
    err: TextIO
    status_width: int = 0

    @classmethod
    def of_process(cls) -> IO:
        """Return the streams of this process."""
        return cls(sys.stdin, sys.stdout, sys.stderr)

    @property
    def stdin_is_terminal(self) -> bool:
        return self.stdin.isatty()

    @property
    def out_is_terminal(self) -> bool:
        return self.out.isatty()

    @property
    def err_is_terminal(self) -> bool:
        return self.err.isatty()

    @property
    def no_input(self) -> bool:
        """True if no question may be asked: AGENTCTL_NO_INPUT is set."""
        return os.environ.get("AGENTCTL_NO_INPUT", "") not in ("", "0")

    @property
    def styled(self) -> bool:
        """True if a terminal may be sent colours and styles."""
        return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"

    def width(self, stream: TextIO) -> int | None:
        """Return the columns of the terminal `stream`; COLUMNS wins. None: unknown."""
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns):
            return int(columns)
        try:
            return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError):
            return None


_current: ContextVar[IO] = ContextVar("agentctl_io")


def current_io() -> IO:
    """Return the streams of the command that runs, by default those of the process."""
    return _current.get(None) or IO.of_process()


@contextmanager
def using_io(io: IO) -> Iterator[None]:
    """Make `io` the current one within the block."""
    token = _current.set(io)
    try:
        yield
    finally:
        _current.reset(token)
