"""Slow clients, idle connections and huge headers: deadlines and memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from agentctl.server.transport import guard
from agentctl.server.transport.connection import SLOWEST_BODY
from agentctl.server.transport.protocol import HttpProtocol, build_protocol_class
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deployment
from tests.kit.process import serve_config
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.raw_http import RawConnection, check_error, open_raw_connection
from tests.server.worker_server import WorkerServer

SECONDS = 0.5
"""Deadline of the tests."""

STALLED_SECONDS = 2.0
"""Time after which a client that reads nothing is disconnected. A slow reader reads more often,
also on a busy machine.
"""

IDLE = 500

LARGE = 64 << 20
"""Bytes of a response that no buffer can hold."""

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Slow:
    """Responds at once; streams at `/stream`, late at `/late`, with a large body at `/large`."""

    def __init__(self) -> None:
        self.left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message: Any = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.disconnect":
            self.left.set()
            return
        parts = 8 if scope["path"] == "/stream" else 1
        if scope["path"] == "/late":
            await asyncio.sleep(3 * SECONDS)
        body = b"x" * (LARGE if scope["path"] == "/large" else 1)
        headers = [] if parts > 1 else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for left in reversed(range(parts)):
            await send({"type": "http.response.body", "body": body, "more_body": left > 0})
            if left:
                await asyncio.sleep(SECONDS / 2)


@pytest.fixture(scope="module")
def slow() -> Slow:
    return Slow()


@pytest.fixture(scope="module")
def host(slow: Slow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    http = build_protocol_class(header_seconds=SECONDS, body_seconds=SECONDS)
    http.stalled_seconds = STALLED_SECONDS
    world = Deployment(tmp_path_factory.mktemp("slow"))
    with serve_in_thread(world, slow, lifespan="off", http=http) as served:
        yield served


def repeated(part: bytes) -> Callable[[], Iterator[bytes]]:
    """Return endless repeats of `part`."""
    return lambda: itertools.repeat(part)


def head_then(head: bytes, rest: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([head], itertools.repeat(rest))


def bytewise(text: bytes) -> Callable[[], Iterator[bytes]]:
    """Return single bytes of `text`, then nothing."""
    return lambda: (text[number : number + 1] for number in range(len(text)))


LORIS = {
    "nothing": repeated(b""),
    "the line": bytewise(b"GET /" + b"a" * 1_000),
    "a field": head_then(b"GET / HTTP/1.1\r\nX: ", b"a"),
    "fields": head_then(b"GET / HTTP/1.1\r\nHost: x\r\n", b"X: a\r\n"),
    "empty lines": repeated(b"\r\n"),
    "spaces": head_then(b"GET / HTTP/1.1\r\nX:", b" "),
    "a second head": head_then(GET + b"GET /", b"a"),
    "empty lines behind a request": head_then(GET, b"\r\n"),
    "a body": head_then(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b"a"),
    "no body": head_then(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b""),
    "chunks": head_then(CHUNKED, b"1\r\na\r\n"),
    "an extension": head_then(CHUNKED + b"1;", b"a"),
    "a size": head_then(CHUNKED, b"0"),
    "trailers": head_then(CHUNKED + b"0\r\n", b"X: a\r\n"),
}


@pytest.mark.parametrize("parts", LORIS.values(), ids=LORIS)
def test_slow_client_is_disconnected(
    host: ThreadedServer, parts: Callable[[], Iterator[bytes]]
) -> None:
    began = time.monotonic()
    with open_raw_connection(host.port) as connection:
        connection.socket.settimeout(SECONDS / 10)
        received = dripped(connection, parts())
        took = time.monotonic() - began
    assert took > SECONDS * 0.9
    assert received.count(b"HTTP/1.1") == received.count(b"200 OK")


def dripped(connection: RawConnection, parts: Iterator[bytes]) -> bytes:
    """Send parts slowly until the server closes; return the received bytes."""
    received = b""
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(ConnectionError):
        for part in itertools.chain(parts, itertools.repeat(b"")):
            assert time.monotonic() < deadline, "the server does not close the connection"
            connection.socket.sendall(part)
            with contextlib.suppress(TimeoutError):
                found = connection.socket.recv(65_536)
                if not found:
                    break
                received += found
    return received


def test_application_learns_of_a_missing_body(host: ThreadedServer, slow: Slow) -> None:
    slow.left.clear()
    with open_raw_connection(host.port) as connection:
        connection.send(CHUNKED + b"1\r\na\r\n")
        assert connection.ended()
    assert slow.left.wait(PATIENCE)


def test_announced_bytes_give_a_body_more_time(host: ThreadedServer) -> None:
    parts = 4
    part = b"x" * (SLOWEST_BODY // 4)
    with open_raw_connection(host.port) as connection:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        connection.send(head % (parts * len(part)))
        for _ in range(parts):
            time.sleep(SECONDS / 2)
            connection.send(part)
        assert connection.answer().status == 200


@pytest.mark.parametrize("path", [b"/stream", b"/late"])
@pytest.mark.parametrize("behind", [b"", b"\r\n", b"GET"])
def test_responses_have_no_deadline(host: ThreadedServer, path: bytes, behind: bytes) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n" + behind)
        answer = connection.answer()
        assert answer.body == b"x" * (8 if path == b"/stream" else 1)
        assert "connection" not in answer.fields
        if behind == b"GET":
            assert connection.ended()


def test_response_without_a_length_has_no_chunks_for_http_1_0(host: ThreadedServer) -> None:
    """RFC 9112 6.1: such a client knows no chunks, and reads until the connection closes."""
    for path, body in ((b"/stream", b"x" * 8), (b"/", b"x")):
        received = bytearray()
        with socket.create_connection(("127.0.0.1", host.port), timeout=PATIENCE) as connection:
            fields = b"Host: x\r\nConnection: keep-alive\r\n\r\n"
            connection.sendall(b"GET " + path + b" HTTP/1.0\r\n" + fields)
            while part := connection.recv(65_536):
                received += part
        head, _, rest = bytes(received).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()
        assert rest == body


def test_idle_connection_is_kept_between_requests(host: ThreadedServer) -> None:
    with open_raw_connection(host.port) as connection:
        for _ in range(2):
            connection.send(GET)
            assert connection.answer().status == 200
            time.sleep(2 * SECONDS)
        connection.send(GET)
        assert connection.answer().status == 200


def test_client_that_reads_nothing_is_disconnected(host: ThreadedServer) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(GET.replace(b"/health", b"/large"))
        inode = established(host.port)
        assert inode
        wait_for(lambda: not established(host.port) & inode)


def test_slow_reader_gets_the_whole_response(host: ThreadedServer) -> None:
    """Also after the keep-alive time."""
    with open_raw_connection(host.port) as connection:
        connection.send(GET.replace(b"/health", b"/large"))
        received = 0
        began = time.monotonic()
        while received < LARGE:
            found = len(connection.socket.recv(1 << 20))
            assert found, received
            received += found
            # At most 1 MB each: the response does not end before.
            time.sleep(0 if time.monotonic() - began > 1.5 * STALLED_SECONDS else 0.05)
        assert time.monotonic() - began > STALLED_SECONDS


def established(port: int) -> set[str]:
    """Return the inodes of our established sockets to a port."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {one[9] for one in fields if one[1].endswith(f":{port:04X}") and one[3] == "01"}


def test_idle_clients_do_not_block_others(host: ThreadedServer) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(open_raw_connection(host.port)) for _ in range(IDLE)]
        for number, connection in enumerate(idle):
            connection.send((b"", b"GET / HT", GET[:-2], CHUNKED)[number % 4])
        assert host.client.get("/health").status_code == 200
        assert all(connection.ended() for connection in idle)
        assert host.client.get("/health").status_code == 200


def peak_memory(pid: int) -> int:
    """Return the peak of the resident memory of a process, in bytes."""
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1_024


HUGE_HEADERS = {
    "field": b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
    "target": b"GET /",
    "fields": b"GET / HTTP/1.1\r\n",
}


def test_huge_header_costs_no_memory(deployment: Deployment) -> None:
    """A request whose header is complete gets the response to it, so the last case has a token.

    Its operation waits for the body: nothing but the chunk extension can end the request.
    """
    credential = f"Authorization: Bearer {deployment.token('me', ADMIN)}\r\n".encode()
    extension = (
        b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n" + credential + b"\r\n5;"
    )
    cases = [*((sent, 431) for sent in HUGE_HEADERS.values()), (extension, 400)]
    with serve_config(deployment.path) as served:
        port = served.port
        pid = served.process.pid
        for sent, status in 3 * cases:  # The peak of a server that has started completely.
            send_until_rejected(port, sent, 200_000, status)
        before = peak_memory(pid)
        for sent, status in cases:
            send_until_rejected(port, sent, 60_000_000, status)
        assert peak_memory(pid) - before < 2 << 20


def test_rejected_credential_is_reported_before_a_huge_extension(server: ThreadedServer) -> None:
    with open_raw_connection(server.port) as connection:
        connection.send(CHUNKED + b"5;")
        check_error(connection.answer(), 401)
        connection.send(*itertools.repeat(b"a" * 6_000, 1_000))
        assert connection.ended()


def send_until_rejected(port: int, start: bytes, size: int, status: int) -> None:
    """Send `start` and `size` further bytes of the same header; expect an error and the end."""
    part = b"a: b\r\n" * 1_000 if start.endswith(b"\n") else b"a" * 6_000
    with open_raw_connection(port) as connection:
        connection.send(start, *itertools.repeat(part, size // len(part)))
        check_error(connection.answer(), status)
        assert connection.ended()


def test_each_worker_process_has_the_limits(pair: WorkerServer) -> None:
    long_field = b"GET / HTTP/1.1\r\nX: " + b"a" * 16_384
    many_fields = GET[:-2] + b"X: a\r\n" * 100 + b"\r\n"
    for sent in (long_field, many_fields):
        with open_raw_connection(pair.served.port) as connection:
            connection.send(sent)
            check_error(connection.answer(), 431)


def test_a_server_process_ends_requests_without_a_whole_head(deployment: Deployment) -> None:
    with serve_config(deployment.path) as served, contextlib.ExitStack() as opened:
        started = time.monotonic()
        connections = [opened.enter_context(open_raw_connection(served.port)) for _ in range(2)]
        connections[1].send(b"GET / HTTP/1.1\r\nX: ")
        for connection in connections:
            connection.socket.settimeout(PATIENCE)
            while connection.socket.recv(65_536):
                pass
        assert time.monotonic() - started > HttpProtocol.header_seconds - 1


def test_default_limits_are_those_of_the_contract() -> None:
    assert (guard.MAXIMUM_HEAD_BYTES, guard.MAXIMUM_FIELDS) == (16_384, 100)
    assert (HttpProtocol.header_seconds, HttpProtocol.body_seconds) == (10, 30)
