"""Fixtures that run commands: in a process, at a terminal, or in this process."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.demo import Demo, serving
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment, start_at_terminal

CTRL_C = b"\x03"


@dataclass(frozen=True)
class Seen:
    """A command that ended, and everything that a person at its terminal saw."""

    code: int
    screen: str


class Agentctl(Protocol):
    def __call__(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        cwd: Path | None = None,
    ) -> Result: ...


class Terminal(Protocol):
    def __call__(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        types: str = "",
        when: str = "[y/N] ",
        then: Sequence[tuple[str, str]] = (),
    ) -> Seen: ...


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory, the default directory of commands."""
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """A scrubbed environment: nothing of ours, no colors, everything of a user under `home`."""
    return base_environment() | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "100",
        "USER": "tester",
        "LOGNAME": "tester",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def agentctl(environment: dict[str, str], home: Path) -> Agentctl:
    """Run `agentctl ARGS` to its end, without a terminal, with nothing on stdin by default."""

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        cwd: Path | None = None,
    ) -> Result:
        typed = input.encode() if isinstance(input, str) else input or b""
        return run_command(
            *args, environment=environment | dict(env or {}), folder=cwd or home, typed=typed
        )

    return run


@pytest.fixture
def terminal(environment: dict[str, str], home: Path) -> Terminal:
    """Run `agentctl ARGS` to its end with a real terminal for all three streams.

    `types` is what the person types once `when` is on the screen; `\x03` is Ctrl-C and `\x04` the
    end of input. `then` has further replies: a text that has to appear, and what is typed then.
    """

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        types: str = "",
        when: str = "[y/N] ",
        then: Sequence[tuple[str, str]] = (),
    ) -> Seen:
        ours, theirs = os.openpty()
        with os.fdopen(ours, "r+b", buffering=0) as screen:
            process = start_at_terminal(theirs, *args, env=environment | dict(env or {}), cwd=home)
            text = _until_ended(screen.fileno(), [(when, types), *then], process)
            os.close(theirs)
            return Seen(process.wait(PATIENCE), text.replace("\r\n", "\n"))

    return run


def _until_ended(
    screen: int, replies: Sequence[tuple[str, str]], process: subprocess.Popen[bytes]
) -> str:
    """Type each reply when it is time, and read until the command has ended.

    Ctrl-C is typed again every 5 seconds, as a person does: Python notices a signal that arrives
    between its last check and its read of the terminal only when the read returns.
    """
    seen = b""
    answered = 0
    left = [(when.encode(), types.encode()) for when, types in replies if types]
    deadline = time.monotonic() + PATIENCE
    due = 0.0
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if select.select([screen], [], [], 0 if ended else 0.02)[0]:
            seen += os.read(screen, 65536)
        elif ended:
            return seen.decode()
        if not left or time.monotonic() < due:
            continue
        when, types = left[0]
        if when not in seen[answered:]:
            continue
        os.write(screen, types)
        if types == CTRL_C:
            due = time.monotonic() + 5
        else:
            answered = len(seen)
            del left[0]
    process.kill()
    process.wait()
    raise AssertionError(f"still running, after {seen!r}")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo server; each test uses its own sessions there."""
    with serving(tmp_path_factory.mktemp("demo") / "data") as demo:
        yield demo


@pytest.fixture
def on_demo(demo: Demo, agentctl: Agentctl) -> Agentctl:
    """Run `agentctl ARGS` straight on the database of the demo."""

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        cwd: Path | None = None,
    ) -> Result:
        return agentctl(*args, "--config", str(demo.config), env=env, input=input, cwd=cwd)

    return run


@pytest.fixture(params=["local", "remote"])
def through(request: pytest.FixtureRequest, demo: Demo, agentctl: Agentctl) -> Agentctl:
    """Run `agentctl ARGS` on the demo's data: once straight on its database, once over HTTP.

    For what a command says about its target, and for errors that a server has found. Other tests
    use `on_demo`: rows of `tests/contract/table/commands.py` show that both print the same.
    """
    remote = request.param == "remote"
    door = ("--url", demo.url) if remote else ("--config", str(demo.config))
    variables = {"AGENTCTL_TOKEN": demo.token} if remote else {}

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        cwd: Path | None = None,
    ) -> Result:
        return agentctl(*args, *door, env=variables | dict(env or {}), input=input, cwd=cwd)

    return run
