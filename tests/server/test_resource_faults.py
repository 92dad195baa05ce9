"""A server with a full disk, a locked database file, or no free file descriptor."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.documents import ROOT
from tests.kit.process import AGENTCTL, ServerProcess, serve_config
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

MOUNTED = 'mount -t tmpfs -o size=4m none "$0" && exec "$@"'

COMMANDS = """
import json, os, pathlib, sys
from tests.kit.command import run_command
folder = pathlib.Path.cwd()
ended = [
    run_command(*words, environment=os.environ, folder=folder) for words in json.loads(sys.argv[1])
]
print(json.dumps([(each.code, each.stdout + each.stderr) for each in ended]))
"""
"""Runs several commands in one process: only the mount needs it."""

LARGE = {"text": "x" * 100_000}


def create(
    client: httpx2.Client, name: str, metadata: Any = None, db: str = "main"
) -> httpx2.Response:
    body = {"session_id": name, "agent_id": "echo", "metadata": metadata}
    return client.post(f"/sessions?db_id={db}", json=body)


def is_unavailable(answer: httpx2.Response) -> bool:
    """Return True for a complete 503 response."""
    if answer.status_code != 503:
        return False
    assert answer.json()["error_code"] == "UNAVAILABLE"
    assert int(answer.headers["Retry-After"]) > 0
    return True


def all_sessions(client: httpx2.Client, db: str = "main") -> set[str]:
    answer = client.get(f"/sessions?limit=100&db_id={db}")
    assert answer.status_code == 200
    return {session["session_id"] for session in answer.json()["data"]}


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-m", "sh", "-c", MOUNTED, str(folder), "true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


class Disk:
    """The disk of a server: a small mounted one, or a limit on the size of its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.is_own = can_mount(folder)
        self.program = AGENTCTL
        if self.is_own:
            self.program = ("unshare", "-m", "sh", "-c", MOUNTED, str(folder), *AGENTCTL)

    def fill(self, server: ServerProcess) -> None:
        if not self.is_own:
            most = max(path.stat().st_size for path in self._folder.glob("main.db*"))
            self._bound(server, most)
            return
        with self._ballast(server).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self, server: ServerProcess) -> None:
        if self.is_own:
            self._ballast(server).unlink()
        else:
            self._bound(server, resource.RLIM_INFINITY)

    def _ballast(self, server: ServerProcess) -> Path:
        """Return a file on the disk, through the mounts of the server process."""
        return Path(f"/proc/{server.process.pid}/root{self._folder}/ballast")

    @staticmethod
    def _bound(server: ServerProcess, size: int) -> None:
        hard = resource.RLIM_INFINITY
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, hard))


@dataclass(frozen=True)
class Place:
    """A server on a small disk, and its client."""

    deployment: Deployment
    disk: Disk
    server: ServerProcess
    client: httpx2.Client


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_endpoint: Any) -> Iterator[Place]:
    """A shared server: a test removes the fault that it has caused."""
    folder = tmp_path_factory.mktemp("faults")
    disk = Disk(folder / "disk")
    files = {"main": 'url = "sqlite:///disk/main.db"', "second": 'url = "sqlite:///second.db"'}
    deployment = create_deployment(folder, model_endpoint.base_url, databases=files)
    with (
        serve_config(deployment.path, program=disk.program) as server,
        deployment.client(server.url) as client,
    ):
        yield Place(deployment, disk, server, client)


@pytest.fixture
def served(deployment: Deployment) -> Iterator[ThreadedServer]:
    with serve_in_thread(deployment) as server:
        server.client.headers.update(deployment.bearer("me", ADMIN))
        yield server


def test_full_disk_fails_writes_until_there_is_space(place: Place) -> None:
    client = place.client
    kept = all_sessions(client)
    kept |= {f"s{n}" for n in range(3) if create(client, f"s{n}").status_code == 201}
    place.disk.fill(place.server)
    refused = set()
    for n in range(16):
        answer = create(client, f"full{n}", LARGE)
        (refused if is_unavailable(answer) else kept).add(f"full{n}")
        assert answer.status_code in (201, 503)
    assert len(refused) > 8
    run = client.post("/agents/echo/runs", data={"message": "x", "stream": "false"})
    assert is_unavailable(run)
    assert all_sessions(client) == kept
    assert client.get("/sessions/s1").status_code == 200
    unready = client.get("/ready")
    assert (unready.status_code, unready.json()["checks"]["database"]) == (503, "failed")
    place.disk.free(place.server)
    wait_for(lambda: create(client, "after", LARGE).status_code in (201, 409))
    run = client.post("/agents/echo/runs", data={"message": "x", "stream": "false"})
    assert (run.status_code, run.json()["status"]) == (200, "COMPLETED")
    assert all_sessions(client) == kept | {"after", run.json()["session_id"]}


def test_read_only_file_system_is_named_by_each_command(
    deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = deployment.folder
    assert run_command("db", "migrate", environment=os.environ, folder=folder).code == 0
    words = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    mounted = ("unshare", "-m", "sh", "-c", words, str(folder))
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a user who may mount: run as root")

    copy = str(tmp_path_factory.mktemp("writable") / "copy.db")
    commands = (("serve", "--port", "0"), ("db", "backup", copy), ("doctor", "--db"), ("doctor",))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [*mounted, sys.executable, "-c", COMMANDS, json.dumps(commands)]
    ended = subprocess.run(line, cwd=folder, env=environment, capture_output=True, check=True)
    results = json.loads(ended.stdout)

    assert [code for code, _ in results[:3]] == [7, 7, 1], results
    for _, said in results[:3]:
        assert "the database is read-only" in said.lower()
        assert f"{folder} cannot be written" in said
        assert "mounted read-only" in said
    _, said = results[3]
    assert "its file system is mounted read-only: mount it for writing" in said
    assert "chmod u+wx" not in said


def test_foreign_lock_is_reported_until_released(served: ThreadedServer) -> None:
    client = served.client
    assert create(client, "s1", db="second").status_code == 201

    with hold_lock(served):
        assert is_unavailable(create(client, "s2", db="second"))
        assert all_sessions(client, "second") == {"s1"}
        assert client.get("/ready").status_code == 503

    wait_for(lambda: client.get("/ready").status_code == 200)
    assert create(client, "s2", db="second").status_code == 201


@contextlib.contextmanager
def hold_lock(served: ThreadedServer) -> Iterator[None]:
    """Hold the lock of writers of the database `second`, as a program of a user would."""
    path = str(served.deployment.folder / "second.db")
    with closing(apsw.Connection(path)) as holder:
        holder.set_busy_timeout(5_000)
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


def test_every_request_waits_once_for_a_foreign_lock(served: ThreadedServer) -> None:
    """Requests that arrive one after another wait for their own time, not for one another."""

    def time_request(number: int) -> float:
        time.sleep(0.7 * number)
        began = time.monotonic()
        with served.deployment.client(served.url) as client:
            assert is_unavailable(create(client, f"locked{number}", db="second"))
        return time.monotonic() - began

    with hold_lock(served), ThreadPoolExecutor(4) as pool:
        waits = list(pool.map(time_request, range(4)))
    assert max(waits) < 15, waits  # One after another, the last one would wait 18 s.


def test_server_recovers_from_missing_file_descriptors(place: Place) -> None:
    pid = place.server.process.pid
    kept = all_sessions(place.client)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, limits[1]))

    with ExitStack() as crowd:
        for _ in range(300):
            address = ("127.0.0.1", place.server.port)
            crowd.enter_context(socket.create_connection(address, timeout=PATIENCE))
        wait_for(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) >= 250)
        before = _cpu(pid)
        time.sleep(1)
        assert _cpu(pid) - before < 0.5

    with place.deployment.client(place.server.url) as later:
        wait_for(lambda: _answers(later))
        assert create(later, "crowd").status_code == 201
        assert all_sessions(later) == kept | {"crowd"}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


def _cpu(pid: int) -> float:
    """Return the used CPU seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
