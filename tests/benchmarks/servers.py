"""The servers that are measured: started on a free port, stopped by their process id."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.load import Load, resident_megabytes
from tests.benchmarks.work import Work, find_free_port, wait_for_port
from tests.process import base_environment, start_server

__all__ = [
    "AGENTOS_PYTHON",
    "RunningServer",
    "seed_agentos",
    "serve_agentctl",
    "serve_agentos",
    "serve_endpoint",
    "serve_floors",
]

ROOT = Path(__file__).parents[2]

AGENTOS_PYTHON = ROOT / ".bench" / "agentos" / "bin" / "python"
"""The interpreter of the environment that `make bench` creates from `agentos-requirements.txt`."""

START_SECONDS = 60.0

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class RunningServer:
    """A server that listens; `twin` does the same work on PostgreSQL."""

    port: int
    process_id: int
    work: Work
    twin: RunningServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def memory(self) -> float:
        """The resident memory of its processes in MB."""
        return resident_megabytes(self.process_id)

    def get(self, path: str, *, seconds: int = 1) -> Load:
        """Return the load of one GET request."""
        twin = None if self.twin is None else self.twin.get(path, seconds=seconds)
        url, headers = self.url + path, self.work.headers
        return Load(url, self.process_id, headers, seconds=seconds, twin=twin)

    def post(self, path: str, form: str | None = None, *, seconds: int = 1) -> Load:
        """Return the load of one POST request, with a urlencoded form or without a body."""
        twin = None if self.twin is None else self.twin.post(path, form, seconds=seconds)
        url, headers = self.url + path, self.work.headers
        return Load(url, self.process_id, headers, form=form, post=True, seconds=seconds, twin=twin)


@contextmanager
def serve_agentctl(work: Work, *options: str) -> Iterator[RunningServer]:
    """Run `agentctl serve` with the configuration of the work."""
    place = ("--config", str(work.folder / "agentctl.toml"), "--port", "0", *options)
    log = work.folder / "server.log"
    with start_server(*place, log=log, environment=base_environment()) as server:
        yield RunningServer(int(server.url.rpartition(":")[2]), server.process.pid, work)


@contextmanager
def serve_agentos(work: Work) -> Iterator[RunningServer]:
    """Run AgentOS on the same work; its database must have been seeded."""
    port = find_free_port()
    with _run_program(work, port, *_agentos_command(work, "serve", port)) as process_id:
        yield RunningServer(port, process_id, work)


def seed_agentos(work: Work) -> None:
    """Fill the database of AgentOS through its own classes."""
    done = subprocess.run(
        _agentos_command(work, "seed", 0),
        cwd=work.folder,
        env=base_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"AgentOS could not be seeded: {done.stderr[-2_000:]}")


def _agentos_command(work: Work, act: str, port: int) -> list[str]:
    description = work.folder / "work.json"
    description.write_text(json.dumps(work.described(port)))
    program = Path(__file__).with_name("agentos_server.py")
    return [str(AGENTOS_PYTHON), str(program), act, str(description)]


@contextmanager
def serve_floors(work: Work) -> Iterator[RunningServer]:
    """Run the floors on the database of agentctl, by default with the session of one run."""
    port, path = find_free_port(), str(work.folder / "agentctl.db")
    command = [sys.executable, "-m", "tests.benchmarks.floors", str(port), path, "runs-1"]
    command.append(work.model_url)
    with _run_program(work, port, *command, folder=ROOT) as process_id:
        yield RunningServer(port, process_id, work)


@contextmanager
def serve_endpoint() -> Iterator[str]:
    """Run a paced model endpoint; yield its URL."""
    command = [sys.executable, "-m", "tests.benchmarks.paced"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextmanager
def _run_program(work: Work, port: int, *command: str, folder: Path | None = None) -> Iterator[int]:
    """Run a program; yield its process id when it listens."""
    with (work.folder / "program.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder or work.folder, env=base_environment(), stdout=log, stderr=log
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
