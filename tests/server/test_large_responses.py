"""Large responses to clients that do not read them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx2
import pytest

from agentctl.server import answers
from tests.kit.concurrent_callers import open_client
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, Deployment
from tests.kit.threaded_server import serve_in_thread
from tests.server.raw_http import RawConnection

RUNS = 6
"""Runs of a session of 3 MB: each has a message of 256 KB, and an answer."""

MESSAGE = "x" * 262_144


async def fill(client: httpx2.AsyncClient, session: str) -> None:
    """Create the session."""
    for _ in range(RUNS):
        body = {"message": MESSAGE, "session_id": session, "stream": False}
        assert (await client.post("/agents/echo/runs", json=body)).json()["status"] == "COMPLETED"


@contextlib.contextmanager
def slow_reader(url: str, path: str, token: str) -> Iterator[RawConnection]:
    """Request a path on a connection whose buffers hold only a small part of the response."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        lines = (f"GET {path} HTTP/1.1", "Host: here", f"Authorization: Bearer {token}", "", "")
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        yield RawConnection(connection)


async def test_unread_responses_use_a_limited_number_of_bytes(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "RESPONSE_BYTES", 8_000_000)
    with serve_in_thread(deployment) as served:
        async with (
            open_client(deployment, served.url) as mine,
            open_client(deployment, served.url, "other") as others,
            open_client(deployment, served.url, "third") as third,
        ):
            await fill(mine, "mine")
            await fill(others, "theirs")
            token = deployment.token("me", ADMIN)
            with slow_reader(served.url, "/sessions/mine", token):
                refused = await mine.get("/sessions/mine")
                assert (refused.status_code, refused.json()["error_code"]) == (503, "UNAVAILABLE")
                assert refused.headers["retry-after"]
                # One caller can use half of the bytes: there are enough for another one.
                assert (await others.get("/sessions/theirs")).status_code == 200
                with slow_reader(served.url, "/sessions/theirs", deployment.token("other", ADMIN)):
                    assert (await third.get("/sessions/theirs")).status_code == 503
                    # Small responses do not count.
                    assert (await mine.get("/sessions")).status_code == 200
                    assert (await third.get("/sessions/theirs/runs?limit=1")).status_code == 200

            async def is_free() -> bool:
                return (await mine.get("/sessions/mine")).status_code == 200

            await wait_until(is_free)
            with slow_reader(served.url, "/sessions/mine", token) as late:
                # A client that reads late gets everything.
                late.socket.settimeout(PATIENCE)
                received = 0
                while received < RUNS * 2 * len(MESSAGE):
                    received += len(late.socket.recv(65_536))
