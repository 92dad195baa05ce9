"""A command of this process that works while a test acts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

from agentctl.cli.app import main
from agentctl.cli.io import IO
from agentctl.work import event_loop
from tests.kit.command import forget_tools, use_environment
from tests.kit.conditions import PATIENCE, wait_for

__all__ = ["BackgroundCommand", "background_command"]

_handle_signals = event_loop.handle_signals


class BackgroundCommand(threading.Thread):
    """A command in a thread: its stdout is a pipe, its stderr a file.

    A thread gets no signals. Ctrl-C needs a terminal (`tests.cli.person`) or a process.

    Attributes:
        stdout: the end of the pipe to read from.
    """

    def __init__(self, words: tuple[str, ...], log: Path) -> None:
        super().__init__(daemon=True)
        self._words = words
        self._log = log
        log.write_text("")
        reading, self._writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb")
        self._terminate: Callable[[], None] | None = None
        self._code: int | None = None

    def run(self) -> None:
        with (
            Path(os.devnull).open(encoding="utf-8") as stdin,
            os.fdopen(self._writing, "w", encoding="utf-8") as out,
            self._log.open("a", encoding="utf-8") as err,
        ):
            self._code = main(self._words, IO(stdin, out, err))

    def keep_handlers(self, handlers: Mapping[int, Callable[[], None]]) -> None:
        """Keep what the event loop of this thread would do at a signal."""
        loop = asyncio.get_running_loop()
        self._terminate = lambda: loop.call_soon_threadsafe(handlers[signal.SIGTERM])

    def terminate(self) -> None:
        """Do what SIGTERM does to a command."""
        terminate = wait_for(lambda: self._terminate)
        terminate()

    @property
    def has_ended(self) -> bool:
        """True if the command has ended."""
        return not self.is_alive()

    def wait(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        self.join(PATIENCE)
        assert self._code is not None, self._log.read_text()
        return self._code


@contextlib.contextmanager
def background_command(
    *words: str, environment: Mapping[str, str], log: Path
) -> Iterator[BackgroundCommand]:
    """Run a command in a thread within the block; its stderr is written to `log`.

    A command that still works at the end of the block is terminated. The other commands of the
    block have the same environment, but for what no command reads twice, such as a token.
    """
    # A command replaces them while it works, and two commands overlap.
    stdout = sys.stdout
    stderr = sys.stderr
    command = BackgroundCommand(words, log)
    with (
        use_environment(environment),
        forget_tools(),
        patch.object(event_loop, "handle_signals", _handle_or_keep),
        command.stdout,
    ):
        command.start()
        try:
            yield command
        finally:
            if not command.has_ended:
                command.terminate()
            command.join(PATIENCE)
            sys.stdout = stdout
            sys.stderr = stderr
    assert command.has_ended, log.read_text()


@contextlib.contextmanager
def _handle_or_keep(handlers: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Handle signals in the main thread. Another thread can have no handlers: keep them there."""
    thread = threading.current_thread()
    if isinstance(thread, BackgroundCommand):
        thread.keep_handlers(handlers)
        yield
        return
    with _handle_signals(handlers):
        yield
