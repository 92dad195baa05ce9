"""A demo server for the tests of the command line: the real one, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentctl.operations import RunRequest
from agentctl.remote import RemoteOperations

__all__ = ["Demo", "serving"]

COMMAND = (sys.executable, "-m", "agentctl")
DEADLINE = 30.0


@dataclass(frozen=True)
class Demo:
    """A server that listens: where, with what, what it said when it began; and who may do all."""

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
                return (await operations.create_run("agent", agent, request)).value["run_id"]

        return asyncio.run(create())


@contextmanager
def serving(folder: Path, *args: str) -> Iterator[Demo]:
    """`agentctl serve --demo` with its data in `folder`, on any free port, until the block ends."""
    log = folder.parent / f"{folder.name}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--demo", "--port", "0", "--demo-dir", str(folder), *args],
            env=_environment(folder),
            stderr=said,
            stdout=subprocess.DEVNULL,
        )
    try:
        text = _wait_until_ready(process, log)
        url = text.partition("listens on ")[2].partition(",")[0]
        config = folder / "agentctl.toml"
        yield Demo(url, config, _mint(config), text, process)
    finally:
        process.terminate()
        code = process.wait(DEADLINE)
    assert code == 0, log.read_text()


def _environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "PYTHONWARNINGS": "error"}


def _mint(config: Path) -> str:
    """A token that allows everything."""
    claims = ["--sub", "ada", "--scope", "agent_os:admin"]
    command = [*COMMAND, "token", "mint", *claims, "--config", str(config)]
    minted = subprocess.run(command, env=_environment(config.parent), capture_output=True)
    assert minted.returncode == 0, minted.stderr
    return minted.stdout.decode().strip()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        text = log.read_text()
        if "agentctl runs start" in text:
            return text
        assert process.poll() is None, text
        time.sleep(0.02)
    raise AssertionError(f"not ready: {log.read_text()}")
