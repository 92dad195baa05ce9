"""An HTTP server of an identity provider for tests: its configuration and its keys."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kit.conditions import PATIENCE

__all__ = ["KeyServer", "serve_keys"]


class KeyServer:
    """The state of a server.

    Attributes:
        keys: the entries of the key set at `/jwks`.
        status: status of all responses.
        location: if set, redirect `/jwks` to it.
        body: if set, the body at `/jwks`.
        released: all responses wait for it.
        requests: the paths of all requests.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.issuer = self.url
        self.keys: list[dict[str, Any]] = []
        self.status = 200
        self.location = ""
        self.body: bytes | None = None
        self.released = threading.Event()
        self.released.set()
        self.requests: list[str] = []

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"

    def respond(self, path: str) -> bytes:
        self.released.wait(PATIENCE)
        if path == "/.well-known/openid-configuration":
            return json.dumps(
                {
                    "issuer": self.issuer,
                    "jwks_uri": self.jwks_url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                }
            ).encode()
        return self.body if self.body is not None else json.dumps({"keys": self.keys}).encode()


@contextlib.contextmanager
def serve_keys() -> Iterator[KeyServer]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            state.requests.append(self.path)
            body = state.respond(self.path)
            redirects = state.location and self.path == "/jwks"
            with contextlib.suppress(OSError):
                self.send_response(302 if redirects else state.status)
                if redirects:
                    self.send_header("Location", state.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = KeyServer(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
