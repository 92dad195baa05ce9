"""The servers that are measured: started on a free port, stopped by their process id."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import CONNECTIONS, FORM, Load, resident_megabytes
from bench.work import Work, wait_for_port
from tests.kit.ports import find_free_port
from tests.kit.process import base_environment, serve_config

__all__ = [
    "ROOT",
    "RunningServer",
    "run_program",
    "serve_agentctl",
    "serve_endpoint",
    "serve_floors",
]

ROOT = Path(__file__).parents[1]

START_SECONDS = 60.0

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class RunningServer:
    """A server that listens.

    Attributes:
        twin: a server that does the same work on PostgreSQL.
        key: the key of its callers; empty for the token of the work.
        health: path that is answered without a key.
    """

    port: int
    process_id: int
    work: Work
    twin: RunningServer | None = None
    key: str = ""
    health: str = "/health"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else self.work.headers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def memory(self) -> float:
        """The resident memory of its processes in MB."""
        return resident_megabytes(self.process_id)

    def get(self, path: str, *, seconds: int = 1, connections: int = CONNECTIONS) -> Load:
        """Return the load of one GET request."""
        load = Load(
            self.url + path, self.process_id, self.headers, seconds=seconds, connections=connections
        )
        if self.twin is not None:
            load.twin = self.twin.get(path, seconds=seconds, connections=connections)
        return load

    def post(
        self,
        path: str,
        body: str | None = None,
        *,
        kind: str = FORM,
        seconds: int = 1,
        connections: int = CONNECTIONS,
    ) -> Load:
        """Return the load of one POST request, with a body of this media type or without one."""
        load = Load(
            self.url + path,
            self.process_id,
            self.headers,
            body=body,
            kind=kind,
            post=True,
            seconds=seconds,
            connections=connections,
        )
        if self.twin is not None:
            load.twin = self.twin.post(
                path, body, kind=kind, seconds=seconds, connections=connections
            )
        return load


@contextmanager
def serve_agentctl(work: Work, *options: str) -> Iterator[RunningServer]:
    """Run `agentctl serve` with the configuration of the work."""
    config = work.folder / "agentctl.toml"
    with serve_config(config, *options, environment=base_environment()) as server:
        yield RunningServer(server.port, server.process.pid, work)


@contextmanager
def serve_floors(work: Work) -> Iterator[RunningServer]:
    """Run the floors on the database of agentctl, by default with the session of one run."""
    port = find_free_port()
    path = str(work.folder / "agentctl.db")
    command = [sys.executable, "-m", "bench.floors", str(port), path, "runs-1"]
    command.append(work.model_url)
    with run_program(work, port, *command, folder=ROOT) as process_id:
        yield RunningServer(port, process_id, work)


@contextmanager
def serve_endpoint() -> Iterator[str]:
    """Run a paced model endpoint; yield its URL."""
    command = [sys.executable, "-m", "bench.paced"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextmanager
def run_program(
    work: Work,
    port: int,
    *command: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a program; yield its process id when it listens.

    Args:
        folder: working directory, by default that of the work.
        environment: variables in addition to those that every process inherits.
    """
    with (work.folder / "program.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder or work.folder,
            env=base_environment() | dict(environment or {}),
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_port(port, START_SECONDS)
        yield process.pid
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
