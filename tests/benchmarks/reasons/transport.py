"""The same raw requests to uvicorn's httptools protocol and to agentctl's transport.

`python -m tests.benchmarks.reasons.transport` prints one row for each request: the status of the
response, or "open" if the connection is still open after `WAIT_SECONDS`, and the growth of the
server's resident memory where it matters. Both servers run uvicorn's event loop and parser.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WAIT_SECONDS = 5.0
MEGABYTE = 1_000_000
UVICORN = "tests.benchmarks.reasons.transport"

HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKED = (
    b"POST /sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
)

CASES: dict[str, tuple[bytes, ...]] = {
    "a valid request": (HEAD + b"\r\n",),
    "a header of 30 MB": (HEAD + b"X: ", *[b"a" * MEGABYTE] * 30, b"\r\n\r\n"),
    "5,000 header lines": (HEAD + b"X: a\r\n" * 5_000 + b"\r\n",),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n",),
    "two Hosts": (HEAD + b"Host: y\r\n\r\n",),
    "two Authorization headers": (HEAD + b"Authorization: a\r\nAuthorization: b\r\n\r\n",),
    "an absolute URI of another host": (b"GET http://evil/health HTTP/1.1\r\nHost: x\r\n\r\n",),
    "no HTTP version": (b"GET /health\r\nHost: x\r\n\r\n",),
    "Authorization in a trailer": (CHUNKED + b"Authorization: Bearer x\r\n\r\n",),
    "half a header, then nothing": (HEAD,),
}
"""Requests by name, each as the parts that are sent one after the other."""


class Server(NamedTuple):
    """A server process and its port on the loopback address."""

    port: int
    process_id: int


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Respond 200 with the names of the header fields, read after the body."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    names = b" ".join(name for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": names})


def serve() -> None:
    """Serve `application` with uvicorn alone, on a free port."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    sys.stderr.write(f"uvicorn listens on http://127.0.0.1:{listener.getsockname()[1]}\n")
    config = uvicorn.Config(application, http="httptools", lifespan="off", log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


def outcome(server: Server, parts: tuple[bytes, ...]) -> str:
    """Send a request on its own connection and describe what the server does."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_SECONDS) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        try:
            received = connection.recv(65_536)
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                received += connection.recv(65_536) if received else b""
        except TimeoutError:
            return f"open after {WAIT_SECONDS:g} s"
        except ConnectionError:
            return "closed"
    if not received:
        return "closed"
    status = received.split(b" ", 2)[1].decode()
    taken = parts[0].startswith(CHUNKED) and b"authorization" in received
    return f"{status}, trailer is in the header" if taken else status


def peak(server: Server) -> float:
    """Return the peak resident memory of the server in MB."""
    text = Path(f"/proc/{server.process_id}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1_000


@contextlib.contextmanager
def serving(command: Sequence[str], variables: dict[str, str]) -> Iterator[Server]:
    """Start a server that reports its address on stderr, and stop it at the end."""
    environment = {**os.environ, **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", *command], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                yield Server(int(found[1]), process.pid)
                return
        raise SystemExit(f"{command[0]} did not start")
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Print the table."""
    print("| request | uvicorn alone | agentctl |")
    print("| --- | --- | --- |")
    deadlines = {"AGENTCTL_LIMITS__HEADER_SECONDS": "1", "AGENTCTL_LIMITS__BODY_SECONDS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ours = ("agentctl", "serve", "--demo", "--port", "0", "--demo-dir", f"{folder}/demo")
        with serving((UVICORN, "serve"), {}) as bare, serving(ours, deadlines) as server:
            for name, parts in CASES.items():
                cells = []
                for one in (bare, server):
                    before = peak(one)
                    cell = outcome(one, parts)
                    grown = peak(one) - before
                    cells.append(f"{cell} (+{grown:.0f} MB)" if len(parts) > 9 else cell)
                print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    serve() if sys.argv[1:] else main()
