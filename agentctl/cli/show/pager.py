"""A pager for output that is longer than the terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from shutil import which
from types import TracebackType

from agentctl.cli.io import current_io
from agentctl.cli.show.terminal import note

PAGER_VARIABLE = "AGENTCTL_PAGER"

DEFAULT_PAGER = "less -FRX"


class Pager:
    """A sink for text that starts a pager once the text is longer than the screen.

    Args:
        wanted: False writes to stdout only; so does a stdout that is no terminal.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._io = current_io()
        self._command = _find_pager() if wanted and self._io.out_is_terminal else []
        self._held: list[str] = []
        self._lines = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Pager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, text: str) -> None:
        """Write text. After the reader has left the pager it is dropped.

        Raises:
            BrokenPipeError: the reader has left the pager.
        """
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(text)
        elif self._command:
            self._held.append(text)
            self._lines += text.count("\n")
            if self._lines >= self._io.height(self._io.out):
                self._start()
        else:
            self._io.out.write(text)

    def close(self) -> None:
        """Write the rest of the text, and wait until the reader leaves the pager."""
        if self._process is None:
            self._flush_held()
            self._io.out.flush()
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        while True:
            with suppress(KeyboardInterrupt):  # Ctrl-C is for the pager, which has the terminal
                self._process.wait()
                return

    def _start(self) -> None:
        self._io.out.flush()
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, text=True, encoding="utf-8",
                errors="backslashreplace", bufsize=1,
            )  # fmt: skip
        except OSError:
            note(f"the pager {self._command[0]} cannot be started")
            self._command = []
            self._flush_held()
            return
        held, self._held = "".join(self._held), []
        self.write(held)

    def _flush_held(self) -> None:
        for text in self._held:
            self._io.out.write(text)
        self._held.clear()


def write_at_once(text: str) -> None:
    """Write text to stdout without a pager, for output that goes on for long."""
    out = current_io().out
    out.write(text)
    out.flush()


def _find_pager() -> list[str]:
    named = os.environ.get(PAGER_VARIABLE)
    try:
        command = shlex.split(DEFAULT_PAGER if named is None else named)
    except ValueError:
        command = []
    if not command or command == ["cat"] or os.environ.get("TERM", "dumb") == "dumb":
        return []
    return command if which(command[0]) else []
