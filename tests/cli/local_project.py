"""A local project with demo models and without a server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw

from agentctl.cli.files import write_key_pair
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment
from tests.kit.process import start_agentctl
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

__all__ = ["in_database", "running_command", "serve_paying_agent", "wait_for_line", "write_config"]

CONFIG = """
[[databases]]
id = "main"
url = "sqlite:///agentctl.db"
[[models]]
id = "echo"
provider = "demo"
model = "echo"
[[models]]
id = "slow"
provider = "demo"
model = "slow"
[[agents]]
id = "echo"
model = "echo"
[[agents]]
id = "slow"
model = "slow"
[[models]]
id = "leader"
provider = "demo"
model = "leader"
[[teams]]
id = "pair"
model = "leader"
members = ["slow"]
"""


PAYING_AGENT = Path(__file__).parents[1] / "approvals" / "paying_agent.py"

PAYER = """
[[databases]]
id = "main"
url = "sqlite:///agentctl.db"
[[agents]]
id = "payer"
object = "paying_agent:wait_for_people"
"""


@contextmanager
def serve_paying_agent(
    folder: Path, config: str, key_file: str, algorithm: str
) -> Iterator[ThreadedServer]:
    """Serve the agent that waits for people, with a key pair and more configuration."""
    shutil.copy(PAYING_AGENT, folder)
    (folder / "agentctl.toml").write_text(PAYER + config)
    write_key_pair(folder / key_file, algorithm)
    with serve_in_thread(Deployment(folder)) as server:
        yield server


def write_config(folder: Path) -> Path:
    """Write the configuration."""
    config = folder / "agentctl.toml"
    config.write_text(CONFIG)
    return config


@contextmanager
def running_command(
    *args: str, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as a process within the block; its stderr is written to `log`.

    It is a program, although the other commands of a test are in the process of the test: two
    commands in one process would share its streams, variables and imported modules.

    A command that still works at the end of the block is terminated, and must end.
    """
    with log.open("wb") as said:
        process = start_agentctl(
            *args, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        )
    with process:
        try:
            yield process
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()


def wait_for_line(file: Path, text: str, times: int = 1) -> str:
    """Wait until a text is in a file, `times` or more, and return the content of the file."""
    wait_for(lambda: file.read_text().count(text) >= times, problem=file.read_text)
    return file.read_text()


def in_database(
    config: Path, sql: str, values: tuple[object, ...] = ()
) -> list[tuple[object, ...]]:
    """Execute SQL on the database with foreign keys off, as a manual edit would."""
    connection = apsw.Connection(str(config.parent / "agentctl.db"))
    try:
        connection.set_busy_timeout(5_000)
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()
