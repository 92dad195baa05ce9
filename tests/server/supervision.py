"""Servers of agentctl and of uvicorn with a parent and workers, and what can happen to them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import create_deployment
from tests.kit.ports import find_free_port
from tests.kit.process_states import is_alive

WORKERS = 2
WATCHED_SECONDS = 15.0
"""Time to wait for an effect that may not come; uvicorn's check of a worker waits 5 seconds."""


class Supervised(NamedTuple):
    """A server with a parent and workers."""

    parent: int
    port: int
    marker: str

    def workers(self) -> set[int]:
        """Return the ids of the worker processes, by a word of their command line."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes()
                if parent == self.parent and self.marker.encode() in command:
                    found.add(int(folder.name))
        return {pid for pid in found if is_alive(pid)}

    def answers(self) -> bool:
        """Return True if a new connection gets a response."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
        ):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return connection.recv(100).startswith(b"HTTP/1.1")
        return False


APPLICATION = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"up"})
"""
WATCHED = {"agentctl": "agentctl.toml", "uvicorn": "reloaded.py"}
"""The file of each server that `--reload` watches."""


@contextlib.contextmanager
def supervise(name: str, folder: Path, *options: str) -> Iterator[Supervised]:
    """Start a server of `agentctl` or `uvicorn` on a free port; kill its processes at the end.

    Args:
        folder: an empty folder for its files.
        options: instead of those for two workers.
    """
    port = find_free_port()
    if name == "agentctl":
        deployment = create_deployment(folder, "http://127.0.0.1:9/v1")
        command = [sys.executable, "-m", "agentctl", "serve", "--config", str(deployment.path)]
        marker = "worker_main"
    else:
        (folder / WATCHED[name]).write_text(APPLICATION)
        command = [sys.executable, "-m", "uvicorn", "reloaded:app", "--app-dir", str(folder)]
        marker = "spawn_main"
    command += ["--port", str(port), *(options or ("--workers", str(WORKERS)))]
    count = 1 if options else WORKERS
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Supervised(process.pid, port, marker)
    started: set[int] = set()
    try:
        wait_for(lambda: len(server.workers()) == count and server.answers())
        started |= server.workers()
        yield server
    finally:
        started |= server.workers()
        for pid in (process.pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> float | None:
    """Return the seconds until a condition is true; None if it is not in time."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            return None
        time.sleep(0.02)
    return time.monotonic() - start


def replace_worker(server: Supervised, number: int, seconds: float = PATIENCE) -> float | None:
    """Send a signal to one worker; return the seconds until another one has its place."""
    before = server.workers()
    os.kill(min(before), number)
    return wait_for(lambda: len(server.workers() - {min(before)}) == WORKERS, seconds)


def kill_parent(server: Supervised, seconds: float = PATIENCE) -> float | None:
    """Kill the parent; return the seconds until no worker is left."""
    workers = server.workers()
    os.kill(server.parent, signal.SIGKILL)
    return wait_for(lambda: not any(map(is_alive, workers)), seconds)


def break_file(server: Supervised, path: Path, seconds: float = WATCHED_SECONDS) -> float | None:
    """Write an invalid text to a watched file.

    Returns:
        The seconds until requests fail; None if they do not.
    """
    path.write_text("this is [ neither Python nor TOML\n")
    return wait_for(lambda: not server.answers(), seconds)
