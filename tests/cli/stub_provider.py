"""A provider that breaks the rules: each scenario is the first segment of a path below its URL."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Provider", "serve_provider"]

Answer = tuple[int, Mapping[str, Any] | bytes]


class Provider:
    """The state of a provider.

    Attributes:
        answers: the responses of a scenario by endpoint; a list has one for each request.
        polls: times of the requests for tokens.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, list[Answer]] = {}
        self.polls: list[float] = []

    def configure(self, **changes: Any) -> Answer:
        """Return the response with a configuration; None leaves a member out."""
        names = ("authorization", "token", "device_authorization", "revocation")
        members: dict[str, Any] = {f"{name}_endpoint": f"{self.url}/{name}" for name in names}
        members = {"issuer": self.url, **members, **changes}
        return 200, {name: value for name, value in members.items() if value is not None}

    def answer(self, endpoint: str) -> Answer:
        if endpoint == "token":
            self.polls.append(time.monotonic())
        given = self.answers[endpoint]
        return given.pop(0) if len(given) > 1 else given[0]


@contextlib.contextmanager
def serve_provider() -> Iterator[Provider]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

        def respond(self) -> None:
            status, content = provider.answer(self.path.strip("/").rpartition("/")[2])
            self.send_response(status)
            if isinstance(content, bytes):
                self.send_header("Location", "https://other.example/")
                self.end_headers()
                self.send_pieces(content)
                return
            body = json.dumps(content).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_pieces(self, content: bytes) -> None:
            with contextlib.suppress(OSError):
                self.wfile.write(content)
                while content == b"[":
                    self.wfile.write(b" " * 65_536)

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.respond()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
