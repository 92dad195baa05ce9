"""Run commands of `agentctl` in this process: the real `main`, without starting an interpreter."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer.main

from agentctl.cli import root
from agentctl.cli.app import main
from agentctl.cli.io import IO
from agentctl.server.processes.supervisor import Supervisor
from tests.kit.user_modules import forget_user_modules

__all__ = ["Result", "run_command", "run_main", "shift_clock", "stay_in_hour"]


# A process runs one command. Typer takes as long to build it from its function as to run it.
root._load_command = functools.cache(root._load_command)
typer.main.get_params_from_function = functools.cache(typer.main.get_params_from_function)


@dataclass(frozen=True)
class Result:
    """A command that ended: its exit code, and its output as text and as bytes."""

    code: int
    stdout: str
    stderr: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


class _Screen(io.BytesIO):
    """A stream that is taken for a terminal."""

    def isatty(self) -> bool:
        return True


def run_command(
    *arguments: str,
    environment: Mapping[str, str],
    folder: Path,
    typed: bytes = b"",
    screen: bool = False,
    encoding: str = "utf-8",
) -> Result:
    """Run `agentctl ARGUMENTS` to its end.

    Args:
        environment: all environment variables.
        folder: the current folder.
        typed: bytes on stdin.
        screen: stdout is a terminal, with the COLUMNS and LINES of the environment.
        encoding: that of the streams, which a process takes from its locale.
    """
    stdin = io.BytesIO(typed)
    stderr = io.BytesIO()
    stdout = _Screen() if screen else io.BytesIO()
    streams = IO(*(io.TextIOWrapper(each, encoding) for each in (stdin, stdout, stderr)))
    code = run_main(arguments, streams, environment=environment, folder=folder)
    streams.out.flush()
    streams.err.flush()
    raw = stdout.getvalue()
    error = stderr.getvalue().decode(encoding)
    assert "Traceback" not in error, error
    return Result(code, raw.decode(encoding), error, raw)


def run_main(
    arguments: Sequence[str], streams: IO, *, environment: Mapping[str, str], folder: Path
) -> int:
    """Run `agentctl ARGUMENTS` with streams of the caller, and return its exit code.

    A server with workers, or with `--reload`, is no command for this process: see
    `_refuse_supervisors`.

    Args:
        environment: all environment variables.
        folder: the current folder.
    """
    with (
        patch.dict(os.environ, environment, clear=True),
        contextlib.chdir(folder),
        _forget_tools(),
        _refuse_supervisors(arguments),
    ):
        return main(arguments, streams)


def _refuse_supervisors(arguments: Sequence[str]) -> contextlib.AbstractContextManager[Any]:
    """Refuse the start of a supervisor in this process.

    It handles SIGCHLD, and takes the signal from the event loops of other servers in this process:
    they would notice the end of no program, and their own ends would wait for it for ever.
    """
    if "serve" not in arguments:
        return contextlib.nullcontext()

    def refuse() -> None:
        pytest.fail("run a server with workers as a program (tests/kit/process.py)")

    return patch.object(Supervisor, "run", side_effect=refuse)


@contextlib.contextmanager
def shift_clock(seconds: int) -> Iterator[None]:
    """Set the clock of this process ahead, or back for a negative number."""
    time_ns = time.time_ns
    with (
        patch.object(time, "time_ns", lambda: time_ns() + seconds * 1_000_000_000),
        patch.object(time, "time", lambda: time_ns() / 1e9 + seconds),
    ):
        yield


@contextlib.contextmanager
def stay_in_hour() -> Iterator[None]:
    """Let no hour or day of a record begin for half an hour: set their clock to the next hour.

    Only records of this process get such times. Tokens keep the clock of the machine, so that
    servers accept them.
    """
    time_ns = time.time_ns
    left = 3_600 - time.time() % 3_600
    ahead = round(left) + 1 if left < 1_800 else 0
    with patch.object(time, "time_ns", lambda: time_ns() + ahead * 1_000_000_000):
        yield


@contextlib.contextmanager
def _forget_tools() -> Iterator[None]:
    """Forget the modules of tools, which a command imports from the folder of a configuration."""
    path = sys.path.copy()
    loaded = set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        forget_user_modules(loaded)
