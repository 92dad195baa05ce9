"""The cutting proxy: each connection ends early, and the cuts are spread over its bytes."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.clients.cutting_proxy import cutting
from tests.kit.conditions import PATIENCE

_BODY = b"x" * 40_000


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    listening.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()
    thread.join()


def _read(url: str) -> int:
    """Return the number of bytes of the body that arrive; -1 without a whole header."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request("GET", "/", headers={"x-fill": "y" * 600})
        response = connection.getresponse()
        try:
            return len(response.read())
        except http.client.IncompleteRead as incomplete:
            return len(incomplete.partial)
        except OSError:
            return 0
    except (OSError, http.client.HTTPException):
        return -1
    finally:
        connection.close()


def test_each_connection_is_cut_at_another_byte(server: str) -> None:
    with cutting(server, seed=1) as proxy:
        lengths = [_read(proxy.url) for _ in range(100)]
    assert len(_BODY) not in lengths
    assert len(set(lengths)) > 15
    counts = proxy.counts
    assert counts["connections"] == counts["cut_requests"] + counts["cut_responses"] == 100
    assert 10 <= counts["cut_requests"] <= 30
