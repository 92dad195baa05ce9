"""A person at a terminal, where a command runs: in this process, or as a program."""

from __future__ import annotations

import contextlib
import os
import select
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

CTRL_C = "\x03"


def run_at_terminal(
    *arguments: str,
    environment: Mapping[str, str],
    folder: Path,
    replies: Sequence[tuple[str, str]] = (),
) -> tuple[int, str]:
    """Run `agentctl ARGUMENTS` to its end with a real terminal for all three streams.

    A command that the person interrupts is a program. Any other one runs in this process.

    Args:
        environment: all environment variables.
        folder: the current folder.
        replies: texts that have to appear on the screen, and what the person types then. Ctrl-C is
            the last of them.

    Returns:
        The exit code, and all that was on the screen.
    """
    if any(types == CTRL_C for _, types in replies):
        return _run_program(arguments, environment, folder, replies)

    ours, theirs = os.openpty()
    typist = _Typist(ours, replies)
    try:
        with _open_streams(theirs) as streams:
            typist.start()
            code = run_main(arguments, streams, environment=environment, folder=folder)
    finally:
        # The terminal has no program any more, so the person sees the end of what it wrote.
        typist.join(PATIENCE)
        os.close(ours)
    assert typist.problem is None, typist.problem
    return code, typist.seen.decode().replace("\r\n", "\n")


def _run_program(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    replies: Sequence[tuple[str, str]],
) -> tuple[int, str]:
    screen = ""
    with sit_at(*arguments, env=dict(environment), folder=folder) as person:
        for when, types in replies:
            screen += person.wait_for(when) + when
            if types == CTRL_C:
                person.interrupt()
            else:
                person.type(types)
        screen += person.read_rest()
        return person.process.returncode, screen


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
    """Reads a screen, and types each reply when it is time."""

    def __init__(self, screen: int, replies: Sequence[tuple[str, str]]) -> None:
        super().__init__(daemon=True)
        self._screen = screen
        self._replies = [(when.encode(), types.encode()) for when, types in replies]
        self.seen = b""
        self.problem: str | None = None

    def run(self) -> None:
        answered = 0
        deadline = time.monotonic() + PATIENCE
        while self._read():
            if time.monotonic() > deadline:
                # The end of input ends a command that waits for an answer.
                self.problem = f"still running, after {self.seen!r}"
                os.write(self._screen, b"\x04")
                continue
            if not self._replies:
                continue

            when, types = self._replies[0]
            if when in self.seen[answered:]:
                os.write(self._screen, types)
                answered = len(self.seen)
                del self._replies[0]

    def _read(self) -> bool:
        """Read what has appeared; False if no program has the terminal, and all was read."""
        read_bytes = _read_screen(self._screen, 0.02)
        self.seen += read_bytes or b""
        return read_bytes is not None


def _read_screen(screen: int, seconds: float) -> bytes | None:
    """Return what appears within some seconds; None if no program has the terminal any more."""
    if not select.select([screen], [], [], seconds)[0]:
        return b""
    try:
        return os.read(screen, 65536)
    except OSError:
        return None


@dataclass
class Person:
    """A person at a terminal where a program runs."""

    screen: int

    process: subprocess.Popen[bytes]

    seen: bytes = b""
    """The output since the last wait. A read may end within a character."""

    def wait_for(self, text: str) -> str:
        """Return the output since the last wait, up to a text."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen
            is_open = self._read(0.2)
            assert is_open or text.encode() in self.seen, self.seen
        before, _, self.seen = self.seen.partition(text.encode())
        return before.decode()

    def interrupt(self) -> None:
        """Type Ctrl-C until the program has ended.

        It is typed again every 5 seconds, as a person does: Python notices a signal that arrives
        between its last check and its read of the terminal only when the read returns.
        """
        due = 0.0
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            now = time.monotonic()
            assert now < deadline, self.seen
            if now >= due:
                self.type(CTRL_C)
                due = now + 5
            if not self._read(0.02):
                self.process.wait(PATIENCE)

    def read_rest(self) -> str:
        """Return the output since the last wait, when the program has ended."""
        deadline = time.monotonic() + PATIENCE
        while self._read(0.2):
            assert time.monotonic() < deadline, self.seen
        self.process.wait(PATIENCE)
        return self.seen.decode()

    def _read(self, seconds: float) -> bool:
        """Read what appears within some seconds; False if no program has the terminal any more."""
        read_bytes = _read_screen(self.screen, seconds)
        self.seen = (self.seen + (read_bytes or b"")).replace(b"\r\n", b"\n")
        return read_bytes is not None

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
