"""A small HTTP server that sends the exact bytes of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.kit.conditions import PATIENCE


@dataclass(frozen=True)
class Seen:
    """A received request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Scripted:
    """A server that sends one response, in pieces, to each request."""

    url: str
    seen: list[Seen] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)


Pieces = Sequence[bytes | None]
Serve = Callable[..., Scripted]


def answer(
    status: int = 200,
    body: bytes = b"{}",
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a complete HTTP response."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def stream_head(content_type: str = "text/event-stream") -> bytes:
    """Return the header of a response that ends with the connection."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n".encode()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers: `serve(b"...")`, or pieces, where None waits for `release` to be set.

    `then` are the pieces for later requests; the last ones are sent again.
    """
    running: list[tuple[ThreadingHTTPServer, threading.Thread, Scripted]] = []

    def start(*pieces: bytes | None, then: Sequence[Pieces] = ()) -> Scripted:
        scripted = Scripted("")
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted, [pieces, *then]))
        scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        running.append((server, thread, scripted))
        return scripted

    yield start
    for server, thread, scripted in running:
        scripted.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(scripted: Scripted, responses: Sequence[Pieces]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            scripted.seen.append(Seen(self.command, self.path, headers, body))
            self.close_connection = True
            try:
                self._write()
            except OSError:
                scripted.gone.set()

        def _write(self) -> None:
            for piece in responses[min(len(scripted.seen), len(responses)) - 1]:
                if piece is None:
                    scripted.release.wait(PATIENCE)
                else:
                    self.wfile.write(piece)
                    self.wfile.flush()

        do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
