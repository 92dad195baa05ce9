"""A demo server in a separate process."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentctl.interface.requests import RunRequest
from agentctl.remote import RemoteOperations
from tests.kit.process import base_environment, start_agentctl, start_server

__all__ = ["Demo", "serving"]


@dataclass(frozen=True)
class Demo:
    """A running server: its URL, configuration, first output, and an admin token."""

    url: str
    config: Path
    token: str
    said: str
    process: subprocess.Popen[bytes]

    def run(
        self, session_id: str, message: str, *, agent: str = "echo", leave: bool = False
    ) -> str:
        """Have an agent run in a session, to its end unless it is to be left; the run's id."""

        async def create() -> str:
            async with RemoteOperations(self.url, self.token) as operations:
                request = RunRequest(message, session_id, background=leave)
                return (await operations.runs.create("agent", agent, request)).value["run_id"]

        return asyncio.run(create())


@contextmanager
def serving(
    folder: Path,
    *options: str,
    program: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Demo]:
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
        yield Demo(server.url, config, _mint(config), said, server.process)


def _environment(folder: Path) -> dict[str, str]:
    return base_environment() | {"HOME": str(folder.parent), "PYTHONWARNINGS": "error"}


def _mint(config: Path) -> str:
    """A token that allows everything."""
    claims = ["--sub", "ada", "--scope", "agent_os:admin", "--yes"]
    place = ("--config", str(config))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_agentctl(
        "token", "mint", *claims, *place, env=_environment(config.parent), **pipes
    ) as mint:
        minted, said = mint.communicate()
    assert mint.returncode == 0, said
    return minted.decode().strip()
