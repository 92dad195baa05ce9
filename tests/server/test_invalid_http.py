"""Invalid HTTP over a raw socket."""

from __future__ import annotations

import socket

import orjson
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.threaded_server import ThreadedServer

NOT_HTTP = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "unknown method": b"FOO /teams HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"GET teams HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the path": b"GET /agents/a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "path beyond ASCII": "GET /agents/\u00e9 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "two lengths": b"POST /sessions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "length and chunks": (
        b"POST /sessions HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
}


def exchange(server: ThreadedServer, sent: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Return status line, header fields and body of the response, until the close."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(sent)
        while part := connection.recv(65_536):
            received += part
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in lines)
    return status, fields, body


@pytest.mark.parametrize("sent", NOT_HTTP.values(), ids=NOT_HTTP)
def test_invalid_http_gets_an_error_body(server: ThreadedServer, sent: bytes) -> None:
    status, fields, body = exchange(server, sent)
    assert status == b"HTTP/1.1 400 Bad Request"
    assert orjson.loads(body) == {
        "detail": "The request is not valid HTTP",
        "error_code": "BAD_REQUEST",
    }
    assert fields[b"content-type"] == b"application/json"
    assert int(fields[b"content-length"]) == len(body)
    assert fields[b"connection"] == b"close"
    assert fields[b"cache-control"] == b"no-store"
    assert fields[b"x-content-type-options"] == b"nosniff"
    assert fields[b"x-request-id"]
