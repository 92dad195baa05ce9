"""A person at a terminal, where a command runs: in this process, or as a program."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentctl.cli.io import IO
from tests.kit.command import run_main
from tests.kit.conditions import PATIENCE
from tests.kit.process import start_at_terminal

__all__ = ["Person", "run_at_terminal", "sit_at"]

CTRL_C = b"\x03"


def run_at_terminal(
    *arguments: str,
    environment: Mapping[str, str],
    folder: Path,
    replies: Sequence[tuple[str, str]] = (),
) -> tuple[int, str]:
    """Run `agentctl ARGUMENTS` to its end with a real terminal for all three streams.

    The command runs in the main thread, which gets SIGINT when the person types Ctrl-C, as the
    process would whose terminal it is.

    Args:
        environment: all environment variables.
        folder: the current folder.
        replies: texts that have to appear on the screen, and what the person types then.

    Returns:
        The exit code, and all that was on the screen.
    """
    ours, theirs = os.openpty()
    typist = _Typist(ours, replies)
    try:
        with _open_streams(theirs) as streams:
            typist.start()
            try:
                code = run_main(arguments, streams, environment=environment, folder=folder)
            finally:
                typist.stop_typing()
        # The terminal has no program any more, so the person sees the end of what it wrote.
        typist.join(PATIENCE)
    finally:
        os.close(ours)
    assert typist.problem is None, typist.problem
    return code, typist.seen.decode().replace("\r\n", "\n")


@contextlib.contextmanager
def _open_streams(terminal: int) -> Iterator[IO]:
    """Open the terminal as the standard streams of a process, and close it at the end."""
    with (
        os.fdopen(terminal, encoding="utf-8") as stdin,
        os.fdopen(os.dup(terminal), "w", encoding="utf-8") as out,
        os.fdopen(os.dup(terminal), "w", encoding="utf-8", errors="backslashreplace") as err,
    ):
        yield IO(stdin, out, err)


class _Typist(threading.Thread):
    """Reads a screen and types each reply when it is time.

    Ctrl-C is typed again every 5 seconds, as a person does: Python notices a signal that arrives
    between its last check and its read of the terminal only when the read returns.
    """

    def __init__(self, screen: int, replies: Sequence[tuple[str, str]]) -> None:
        super().__init__(daemon=True)
        self._screen = screen
        self._replies = [(when.encode(), types.encode()) for when, types in replies]
        self._typing = threading.Lock()
        self._has_stopped = False
        self.seen = b""
        self.problem: str | None = None

    def stop_typing(self) -> None:
        """Let the command have no Ctrl-C any more: it has ended."""
        while not self._has_stopped:
            # One that was typed too late for the command interrupts this.
            with contextlib.suppress(KeyboardInterrupt), self._typing:
                self._has_stopped = True

    def run(self) -> None:
        answered = 0
        due = 0.0
        deadline = time.monotonic() + PATIENCE
        while self._read():
            now = time.monotonic()
            if now > deadline and self.problem is None:
                self.problem = f"still running, after {self.seen!r}"
                self._replies = [(b"", CTRL_C)]
            if not self._replies or now < due:
                continue

            when, types = self._replies[0]
            if when not in self.seen[answered:]:
                continue
            if types == CTRL_C:
                self._interrupt()
                due = time.monotonic() + 5
            else:
                os.write(self._screen, types)
                answered = len(self.seen)
                del self._replies[0]

    def _read(self) -> bool:
        """Read what has appeared; False if no program has the terminal, and all was read."""
        if select.select([self._screen], [], [], 0.02)[0]:
            try:
                self.seen += os.read(self._screen, 65536)
            except OSError:
                return False
        return True

    def _interrupt(self) -> None:
        """Type Ctrl-C. The signal is for the group of the terminal, which has no process here."""
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        seen = len(self.seen)
        os.write(self._screen, CTRL_C)
        # The terminal drops what was not read yet, and then shows the key: the signal comes later.
        while b"^C" not in self.seen[seen:] and self._read():
            pass
        with self._typing:
            if not self._has_stopped:
                signal.pthread_kill(main_thread, signal.SIGINT)


@dataclass
class Person:
    """A person at a terminal where a program runs."""

    screen: int
    process: subprocess.Popen[bytes]
    seen: str = ""

    def wait_for(self, text: str) -> str:
        """Return the output since the last wait, up to a text."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.screen, 65536).decode().replace("\r\n", "\n")
                except OSError:  # the command has closed the terminal
                    assert text in self.seen, self.seen
        before, _, self.seen = self.seen.partition(text)
        return before

    def read_rest(self) -> str:
        """Return the output since the last wait, when the program has ended."""
        rest = b""
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(OSError):
            while True:
                assert time.monotonic() < deadline, rest
                if select.select([self.screen], [], [], 0.2)[0]:
                    rest += os.read(self.screen, 65536)
        self.process.wait(PATIENCE)
        return self.seen + rest.decode().replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())


@contextlib.contextmanager
def sit_at(*words: str, env: dict[str, str], folder: Path) -> Iterator[Person]:
    """Run a program at a new terminal, as the leader of its session: Ctrl-C works."""
    ours, theirs = os.openpty()
    process = start_at_terminal(theirs, *words, env=env, cwd=folder)
    # Only the program has it: a read fails when the program has ended.
    os.close(theirs)
    try:
        yield Person(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
