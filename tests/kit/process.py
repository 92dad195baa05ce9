"""Processes that run `agentctl`: commands, and servers that a test talks to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.conditions import PATIENCE, wait_for

__all__ = [
    "AGENTCTL",
    "ServerProcess",
    "base_environment",
    "run_agentctl",
    "serve_config",
    "start_agentctl",
    "start_at_terminal",
    "start_module",
    "start_server",
    "without_coverage",
]

ROOT = Path(__file__).parents[2]

AGENTCTL = (sys.executable, "-m", "agentctl")

_LISTENS = re.compile(r"listens on (http://[^\s,]+)")
_PASSED_ON = ("PATH", "LANG", "LC_ALL")


def base_environment() -> dict[str, str]:
    """Return the variables that every process of a test inherits: paths, locale, coverage."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith("COVERAGE_")
    }


def without_coverage(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without coverage, which loads modules and writes into the folder."""
    return {name: value for name, value in environment.items() if not name.startswith("COVERAGE_")}


def start_agentctl(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `agentctl ARGUMENTS`.

    Args:
        env: the environment, by default the current one.
        python: the interpreter.
        options: other arguments of `subprocess.Popen`.
    """
    return subprocess.Popen([python, *AGENTCTL[1:], *arguments], env=env, **options)


def start_module(
    module: str, *arguments: str, env: Mapping[str, str], **options: Any
) -> subprocess.Popen[Any]:
    """Start `python -m MODULE ARGUMENTS` in the repository.

    Args:
        module: a module of the tests.
        env: all environment variables.
        options: other arguments of `subprocess.Popen`.
    """
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, env=env, cwd=ROOT, **options)


def start_at_terminal(
    terminal: int, *arguments: str, env: Mapping[str, str], cwd: Path
) -> subprocess.Popen[Any]:
    """Start `agentctl ARGUMENTS` as the leader of a session with this terminal.

    Ctrl-C at the terminal reaches it, and the signal of a terminal that closes.

    Args:
        terminal: the number of the file that becomes the three streams.
        env: all environment variables.
    """
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    return subprocess.Popen(
        [*AGENTCTL, *arguments],
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=partial(_take_terminal, terminal),
        **streams,
    )


def _take_terminal(terminal: int) -> None:
    """Make a terminal the terminal of this process, which leads a session."""
    # The shell that started the suite may have made its processes ignore the end of a terminal.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def run_agentctl(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    python: str = sys.executable,
    typed: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run `agentctl ARGUMENTS` to its end, with the bytes `typed` on stdin."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start_agentctl(*arguments, env=env, cwd=cwd, python=python, **pipes) as process:
        try:
            out, err = process.communicate(typed, PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@dataclass(frozen=True)
class ServerProcess:
    """A server that listens; stderr goes to the file `log`."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log_text(self) -> str:
        """The text on stderr so far."""
        return self.log.read_text()

    def wait_for(self, text: str) -> str:
        """Wait until `text` is on stderr; return all of stderr."""
        wait_for(lambda: text in self.log_text, problem=lambda: self.log_text)
        return self.log_text

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait until the process has ended, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def serve_config(
    config: Path,
    *options: str,
    log: str = "server.log",
    variables: Mapping[str, str] | None = None,
    **more: Any,
) -> AbstractContextManager[ServerProcess]:
    """Serve a configuration on a free port, in its folder.

    Args:
        log: name of the file in the folder for the text on stderr.
        variables: environment variables in addition to those of this process.
        more: `environment`, `python` and `program` as for `start_server`.
    """
    if variables is not None:
        more["environment"] = {**os.environ, **variables}
    place = ("--config", str(config), "--port", "0")
    return start_server(*place, *options, log=config.parent / log, **more)


@contextlib.contextmanager
def start_server(
    *options: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
    program: Sequence[str] | None = None,
) -> Iterator[ServerProcess]:
    """Run `agentctl serve` with these options; enter the block when the server listens.

    A server that still runs at the end of the block gets SIGTERM and must exit with code 0.

    Args:
        log: file for the text on stderr.
        python: the interpreter, which may be that of another environment.
        program: command to run instead of `python -m agentctl`.
    """
    env = dict(os.environ if environment is None else environment)
    with log.open("wb") as stderr:
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": stderr}
        if program is None:
            process = start_agentctl(
                "serve", *options, env=env, python=python, cwd=log.parent, **streams
            )
        else:
            line = [*program, "serve", *options]
            process = subprocess.Popen(line, env=env, cwd=log.parent, **streams)
    try:
        yield ServerProcess(_wait_for_url(process, log), process, log)
        if process.poll() is None:
            process.terminate()
            assert process.wait(PATIENCE) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = _LISTENS.search(log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, f"the server did not start: {log.read_text()}"
        time.sleep(0.02)
    raise AssertionError(f"the server did not start in time: {log.read_text()}")
