"""Fixtures that run commands in this process, also at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.demo import Demo, serving_in_thread
from tests.kit.command import Result, run_command
from tests.kit.person import run_at_terminal
from tests.kit.process import base_environment


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
        replies = [reply for reply in ((when, types), *then) if reply[1]]
        variables = environment | dict(env or {})
        code, screen = run_at_terminal(*args, environment=variables, folder=home, replies=replies)
        return Seen(code, screen)

    return run


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo server in this process; each test uses its own sessions there."""
    with serving_in_thread(tmp_path_factory.mktemp("demo") / "data") as demo:
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
