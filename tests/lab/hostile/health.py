"""The waits of `/health` at a server while something else works, measured from another process."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.kit.conditions import PATIENCE
from tests.kit.process import ServerProcess

KEPT_BYTES = 1_000_000
PAUSE_SECONDS = 0.005


class Target(NamedTuple):
    """A running server, and the token of an administrator."""

    server: ServerProcess
    token: str

    def connect(self) -> socket.socket:
        """Open a connection to the server."""
        parts = urlsplit(self.server.url)
        return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)

    def send(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        """Send a POST; read the response. Return its first bytes."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return self._exchange(head.encode() + body)

    def _exchange(self, request: bytes) -> bytes:
        with self.connect() as connection:
            connection.sendall(request)
            first = bytearray()
            buffer = bytearray(262_144)
            while count := connection.recv_into(buffer):
                first += buffer[: min(count, KEPT_BYTES - len(first))]
        return bytes(first)

    def get(self, path: str) -> bytes:
        """Send a GET; read the response. Return its first bytes."""
        head = (
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            "Connection: close\r\n\r\n"
        )
        return self._exchange(head.encode())

    def run(self, agent: str, **fields: object) -> None:
        """Run an agent to its end."""
        body = {"message": "go", **fields}
        status = self.send(f"/agents/{agent}/runs", json.dumps(body).encode())
        assert status.startswith(b"HTTP/1.1 200"), status


class Wait(NamedTuple):
    """The time of a request of `/health`.

    Attributes:
        seconds: the whole time.
        quiet: the time without that in which this process or the server waited for a processor.
        busy: the processor time of the server meanwhile, in all threads, at most `quiet`: other
            processes on the machine do not add to it.
    """

    seconds: float
    quiet: float
    busy: float


def read_delay(process_id: int) -> float:
    """Return the seconds that the main thread of a process waited for a processor."""
    schedule = Path(f"/proc/{process_id}/task/{process_id}/schedstat").read_text()
    return int(schedule.split()[1]) / 1e9


def read_processor_time(process_id: int) -> float:
    """Return the processor time of all threads of a process (clock_getcpuclockid(3))."""
    return time.clock_gettime((~process_id << 3) | 2)


def check_health(connection: socket.socket) -> None:
    """Request `/health`, and read the whole response, whose last byte ends a JSON object."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    received = b""
    while not received.endswith(b"}"):
        part = connection.recv(65_536)
        assert part, "the server is not healthy"
        received += part
    assert received.startswith(b"HTTP/1.1 200"), "the server is not healthy"


def measure_waits(target: Target, act: Callable[[], None]) -> list[Wait]:
    """Return the times of all requests of `/health` while `act` runs, and of one after it."""
    waits: list[Wait] = []
    processes = os.getpid(), target.server.process.pid
    worker = threading.Thread(target=act, daemon=True)
    deadline = time.monotonic() + PATIENCE
    with target.connect() as connection:
        worker.start()
        is_last = False
        while not is_last and time.monotonic() < deadline:
            is_last = not worker.is_alive()
            delayed = sum(map(read_delay, processes))
            worked = read_processor_time(processes[1])
            begun = time.perf_counter()
            check_health(connection)
            seconds = time.perf_counter() - begun
            worked = read_processor_time(processes[1]) - worked
            delayed = sum(map(read_delay, processes)) - delayed
            quiet = max(0.0, seconds - delayed)
            waits.append(Wait(seconds, quiet, min(quiet, worked)))
            time.sleep(PAUSE_SECONDS)
    return waits
