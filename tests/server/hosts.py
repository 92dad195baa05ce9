"""Servers to test against: in a thread of this process, and as a process of their own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import uvicorn
from starlette.types import ASGIApp

from tests.world import World

__all__ = ["Host", "ServerProcess", "hosting", "serve_process"]

START_SECONDS = 20.0
STOP_SECONDS = 20.0


@dataclass
class Host:
    """A running server, seen from a test.

    Attributes:
        world: what it serves.
        url: where it listens.
        client: for its URL, without a credential.
        ids: names that scenarios use for ids made by the server.
    """

    world: World
    url: str
    client: httpx2.Client
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def bearer(self, subject: str | None, *scopes: str) -> dict[str, str]:
        """Header fields with a token of the world."""
        return {"Authorization": f"Bearer {self.world.token(subject, *scopes)}"}


@contextlib.contextmanager
def hosting(world: World, app: ASGIApp, *, lifespan: str = "on") -> Iterator[Host]:
    """The application on a real socket, served by a thread."""
    config = uvicorn.Config(
        app,
        port=0,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan=lifespan,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        port = _port(server, thread)
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=url, timeout=20) as client:
            yield Host(world, url, client)
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
        assert not thread.is_alive()


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    deadline = time.monotonic() + START_SECONDS
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(server.servers[0].sockets[0].getsockname()[1])


class ServerProcess:
    """`agentctl serve` as a process of its own."""

    def __init__(self, world: World, process: subprocess.Popen[str], url: str) -> None:
        self.world = world
        self.process = process
        self.url = url
        self.said = ""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end: its exit code. What it said is in `said`."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=STOP_SECONDS)
        self.said += said
        return self.process.returncode


def command(world: World, *arguments: str) -> list[str]:
    """The command line that serves the world."""
    serve = [sys.executable, "-m", "agentctl", "serve"]
    return [*serve, "--config", str(world.path), "--port", "0", *arguments]


@contextlib.contextmanager
def serve_process(world: World, *arguments: str) -> Iterator[ServerProcess]:
    """A process that serves the world, once it says that it listens."""
    process = subprocess.Popen(
        command(world, *arguments),
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, url = _announced(process)
        running = ServerProcess(world, process, url)
        running.said = said
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _announced(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What was said until it listens, and where it does."""
    assert process.stderr is not None
    said = ""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stderr], [], [], 0.1)
        line = process.stderr.readline() if ready else ""
        said += line
        if "listens on " in line:
            return said, line.split("listens on ")[1].split(",")[0].strip()
        assert process.poll() is None, f"the server did not start: {said}"
    raise AssertionError(f"the server did not start in time: {said}")
