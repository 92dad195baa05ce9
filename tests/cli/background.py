"""A command that works while a test acts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.kit.conditions import PATIENCE
from tests.kit.process import start_agentctl

__all__ = ["BackgroundCommand", "background_command"]


@dataclass(frozen=True)
class BackgroundCommand:
    """A command that is a program: its stdout is a pipe, its stderr a file."""

    process: subprocess.Popen[bytes]

    log: Path

    @property
    def stdout(self) -> IO[bytes]:
        """The end of the pipe to read from."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def has_ended(self) -> bool:
        """True if the command has ended."""
        return self.process.poll() is not None

    def terminate(self) -> None:
        """Send SIGTERM to the command."""
        self.process.terminate()

    def wait(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def background_command(
    *words: str, environment: Mapping[str, str], log: Path
) -> Iterator[BackgroundCommand]:
    """Run a command within the block; its stderr is written to `log`.

    It is a program, although the other commands of a test are in the process of the test: two
    commands in one process would share its streams, variables and imported modules.

    A command that still works at the end of the block is terminated, and must end.
    """
    with log.open("wb") as stderr:
        process = start_agentctl(
            *words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
    with process:
        try:
            yield BackgroundCommand(process, log)
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
