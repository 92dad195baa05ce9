"""A demo server, in this process or as a program."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentctl.cli.demo import create_demo
from agentctl.interface.requests import RunRequest
from agentctl.remote import RemoteOperations
from tests.kit.command import run_command
from tests.kit.deployment import Deployment
from tests.kit.process import base_environment, start_server
from tests.kit.threaded_server import serve_in_thread

__all__ = ["Demo", "DemoProgram", "serving", "serving_in_thread"]


@dataclass(frozen=True)
class Demo:
    """A running server: its URL, configuration, and an admin token."""

    url: str
    config: Path
    token: str

    def run(
        self, session_id: str, message: str, *, agent: str = "echo", leave: bool = False
    ) -> str:
        """Have an agent run in a session, to its end unless it is to be left; the run's id."""

        async def create() -> str:
            async with RemoteOperations(self.url, self.token) as operations:
                request = RunRequest(message, session_id, background=leave)
                return (await operations.runs.create("agent", agent, request)).value["run_id"]

        return asyncio.run(create())


@dataclass(frozen=True)
class DemoProgram(Demo):
    """A server that is a program, and its first output."""

    said: str
    process: subprocess.Popen[bytes]


@contextmanager
def serving_in_thread(folder: Path) -> Iterator[Demo]:
    """Serve what `agentctl serve --demo` serves, with its data in `folder`, until the block ends.

    The server is in this process, and prints nothing.
    """
    config = create_demo(folder)
    with serve_in_thread(Deployment(folder), code_leaves_connections=True) as server:
        yield Demo(server.url, config, _mint(config))


@contextmanager
def serving(
    folder: Path,
    *options: str,
    program: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[DemoProgram]:
    """`agentctl serve --demo` with its data in `folder`, on any free port, until the block ends.

    Args:
        program: command to run instead of `python -m agentctl`.
        environment: further variables of the server.
    """
    log = folder.parent / f"{folder.name}.log"
    demo = ("--demo", "--port", "0", "--demo-dir", str(folder))
    variables = _environment(folder) | dict(environment or {})
    with start_server(*demo, *options, log=log, environment=variables, program=program) as server:
        said = server.wait_for("agentctl console --sub me")
        config = folder / "agentctl.toml"
        yield DemoProgram(server.url, config, _mint(config), said, server.process)


def _environment(folder: Path) -> dict[str, str]:
    return base_environment() | {"HOME": str(folder.parent), "PYTHONWARNINGS": "error"}


def _mint(config: Path) -> str:
    """Mint a token that allows everything."""
    claims = ("--sub", "ada", "--scope", "agent_os:admin", "--yes")
    ended = run_command(
        *("token", "mint", *claims, "--config", str(config)),
        environment=_environment(config.parent),
        folder=config.parent,
    )
    assert ended.code == 0, ended.stderr
    return ended.stdout.strip()
