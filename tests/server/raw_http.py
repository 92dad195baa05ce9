"""HTTP over a raw socket: a test chooses every byte that is sent."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from tests.kit.conditions import PATIENCE

__all__ = [
    "RawConnection",
    "RawResponse",
    "check_error",
    "open_raw_connection",
    "seconds_until_closed",
]

CODES = {
    400: "BAD_REQUEST", 401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE",
    422: "VALIDATION_ERROR", 431: "REQUEST_HEADER_FIELDS_TOO_LARGE",
    500: "INTERNAL_SERVER_ERROR",
}  # fmt: skip


@dataclass(frozen=True)
class RawResponse:
    """A response: status, header fields by names in lower case, body, and its chunks."""

    status: int
    fields: dict[str, str]
    body: bytes
    chunks: int = 0

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class RawConnection:
    """The client side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._unread = b""

    def send(self, *parts: bytes) -> None:
        """Send parts one by one; ignore that the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                self.socket.sendall(part)

    def answer(self, *, bodiless: bool = False) -> RawResponse:
        """Read the next response, also an interim one. `bodiless`: the response to HEAD."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        line, *lines = head[:-4].split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        fields = dict[str, str]()
        for name, _, value in (field.partition(": ") for field in lines):
            assert name.lower() not in fields, head
            fields[name.lower()] = value
        if bodiless or status in ("100", "204"):
            return RawResponse(int(status), fields, b"")
        parts = self._body(fields)
        return RawResponse(int(status), fields, b"".join(parts), len(parts))

    def ended(self) -> bool:
        """Wait for the next byte; return True if the server closes the connection instead."""
        with contextlib.suppress(ConnectionError):
            return not self._unread and not self.socket.recv(1)
        return True

    def _body(self, fields: dict[str, str]) -> list[bytes]:
        if fields.get("transfer-encoding") != "chunked":
            return [self._exactly(int(fields["content-length"]))]
        parts = list[bytes]()
        while size := int(self._until(b"\r\n"), 16):
            parts.append(self._exactly(size + 2)[:-2])
        self._until(b"\r\n")
        return parts

    def _until(self, end: bytes) -> bytes:
        while end not in self._unread:
            self._more()
        found, _, self._unread = self._unread.partition(end)
        return found + end

    def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._more()
        found = self._unread[:size]
        self._unread = self._unread[size:]
        return found

    def _more(self) -> None:
        part = self.socket.recv(65_536)
        assert part, f"the server closed behind {self._unread!r}"
        self._unread += part


@contextlib.contextmanager
def open_raw_connection(port: int) -> Iterator[RawConnection]:
    """Open a connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield RawConnection(connection)


def check_error(answer: RawResponse, status: int) -> None:
    """Check an error response and the common header fields (docs/contract.md "Errors")."""
    assert answer.status == status, answer
    assert answer.json["error_code"] == CODES[status]
    assert isinstance(answer.json["detail"], str)
    assert answer.fields["content-type"] == "application/json"
    assert answer.fields["cache-control"] == "no-store"
    assert answer.fields["x-content-type-options"] == "nosniff"
    assert answer.fields["referrer-policy"] == "no-referrer"
    rules = answer.fields["content-security-policy"]
    assert rules == "default-src 'none'; frame-ancestors 'none'"
    assert len(answer.fields["x-request-id"]) == 36


def seconds_until_closed(connection: RawConnection, began: float) -> float:
    """Wait until the server closes; return the seconds since `began` (monotonic clock)."""
    assert connection.ended()
    return time.monotonic() - began
