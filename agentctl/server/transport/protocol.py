"""HTTP/1.1 of a connection: uvicorn's protocol over llhttp, with what only the bytes show.

- The bytes of an unfinished head, and those around the chunks of a body, are bounded.
- The request line must be exact, and its target a path: llhttp skips spaces, and uvicorn drops the
  host of an absolute target before an application sees it.
- Trailers never become header fields.
- An upgrade is ignored, and the body of its request read (RFC 9110 7.8).

A request that is refused here has no turn among the responses: if an earlier one is due, the
connection is closed after it.
"""

from __future__ import annotations

import re
from contextvars import Context
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import httptools

from agentctl.errors import AgentctlError, BadRequest
from agentctl.server.transport.connection import BODY, HEAD, IDLE, TimedConnection
from agentctl.server.transport.guard import (
    CYCLE_KEY,
    MAXIMUM_HEAD_BYTES,
    NOT_HTTP,
    RequestGuard,
    build_refusal,
    build_too_large_header,
)

PARSE_BYTES = 8_192
"""Bytes that are parsed at once: the position of the parser is known in steps of this size."""

MAXIMUM_PIPELINED = 16
"""Maximum number of requests that wait for the response to an earlier one of their connection.

Further requests are not served, and the connection is closed after the responses.
"""

CHUNK_OVERHEAD = 8
"""Allowed overhead for each byte of a chunked body; chunks of one byte have five bytes of it."""

_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
"""Lines that may come before the request line (RFC 9112 2.2)."""


class HttpProtocol(TimedConnection):
    """One connection, with the limits of its class (see `build_protocol_class`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = RequestGuard(self.app)

        # The received bytes that contain the current head; True if it starts at the first byte.
        self._head = b""
        self._head_is_first = True

        # The bytes of the body that are not its content, such as the sizes of chunks.
        self._overhead = 0

        # The framing of a body that llhttp does not parse after an upgrade.
        self._upgraded_framing = b""

        # True if all further bytes are thrown away.
        self._is_discarding = False

    def data_received(self, data: bytes) -> None:
        if self._is_discarding or self.transport.is_closing():
            return

        messages_before = self._messages
        for start in range(0, len(data), PARSE_BYTES):
            piece = data[start : start + PARSE_BYTES]
            while piece and not self._is_discarding:
                piece = self._parse(piece)

        is_idle = self._phase == IDLE
        self._lingering.lingers = self._is_discarding or not is_idle or bool(self.pipeline)

        has_ended_request = is_idle and self._messages != messages_before
        if self._is_discarding or has_ended_request:
            self._end_deadline()
        else:
            self._watch_client()

    def _parse(self, piece: bytes) -> bytes:
        """Parse some bytes; return the bytes after an upgrade, which are not parsed yet."""
        messages_before = self._messages
        unparsed = b""
        if not self._head:
            self._head_is_first = self._phase == IDLE
        self._head += piece

        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            unparsed = piece[upgrade.args[0] :]
            self._ignore_upgrade()
        except httptools.HttpParserError:
            self._refuse(BadRequest(NOT_HTTP))
            return b""

        if self._phase == BODY:
            self._head = b""
            self._overhead += len(piece)
            if self._overhead > MAXIMUM_HEAD_BYTES:
                self._refuse(BadRequest(NOT_HTTP))
        elif self._messages != messages_before:
            self._head = b"" if self._phase == IDLE else piece
        elif len(self._head) > self._get_maximum_head():
            self._refuse(build_too_large_header())
        return unparsed

    def _get_maximum_head(self) -> int:
        """Return the maximum bytes of `_head`, which may begin with bytes of an earlier request."""
        if self._head_is_first:
            return MAXIMUM_HEAD_BYTES
        return MAXIMUM_HEAD_BYTES + PARSE_BYTES

    def _refuse(self, error: AgentctlError) -> None:
        """Discard all that follows, and close the connection after an error response."""
        self._is_discarding = True

        # The response to an earlier request is sent first; then its cycle closes the connection.
        is_due = self.cycle is not None and not self.cycle.response_complete
        if is_due and self._phase != BODY:
            self.cycle.keep_alive = False
            return

        # In the body of the request that is processed the error is its response, if none has begun.
        has_turn = not is_due or not (self.pipeline or self.cycle.response_started)
        if has_turn:
            # Without the log context of a request that is processed.
            headers, body = Context().run(build_refusal, error)
            line = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode("ascii")
            lines = [line, *(b"%b: %b" % field for field in headers)]
            self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)

        self._lingering.lingers = True
        self.transport.close()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == HEAD:
            super().on_header(name, value)
        else:
            # A trailer is not a header field. Few programs read it, each in its own way.
            self._is_kept = False

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAXIMUM_PIPELINED or not self._has_exact_line():
            # An error of a callback ends the parser.
            raise ValueError("the request is refused")

        super().on_headers_complete()
        self._overhead = 0
        if self.scope["http_version"] == "1.0":
            cast("dict[str, Any]", self.scope)[CYCLE_KEY] = self.cycle
        if self.parser.should_upgrade():
            self._upgraded_framing = self._get_framing()
        if self.pipeline and not self._get_framing():
            # uvicorn reads nothing more until the responses: it would not notice a disconnect.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if not self._is_discarding:
            self._overhead -= CHUNK_OVERHEAD * len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._upgraded_framing:
            self._head_is_first = False
            super().on_message_complete()

    def _has_exact_line(self) -> bool:
        """Return True if the request line was received as it was parsed, with a path as target."""
        if not self.url.startswith(b"/") or b"#" in self.url:
            return False

        version = self.parser.get_http_version().encode("ascii")
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
        if not self._head_is_first:
            return line in self._head
        empty_lines = _EMPTY_LINES.match(self._head)
        return empty_lines is not None and self._head.startswith(line, empty_lines.end())

    def _get_framing(self) -> bytes:
        """Return the header field that announces the body, or nothing without a body."""
        by_name = dict(self.headers)
        if b"transfer-encoding" in by_name:
            return b"Transfer-Encoding: chunked"
        length = int(by_name.get(b"content-length", b"0"))
        return b"Content-Length: %d" % length if length else b""

    def _ignore_upgrade(self) -> None:
        """Continue after a head with an upgrade. Java's HttpClient sends such requests by default.

        llhttp takes the following bytes for another protocol. If they are a body, it is given to a
        new parser, after a head with the same framing; no other request is read after it.
        """
        if self._upgraded_framing:
            self._is_kept = False
            callbacks = SimpleNamespace(
                on_body=self.on_body, on_message_complete=self._end_upgraded_body
            )
            self.parser = httptools.HttpRequestParser(callbacks)
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._upgraded_framing + b"\r\n\r\n")

    def _end_upgraded_body(self) -> None:
        self._upgraded_framing = b""
        self.on_message_complete()
        self._is_discarding = True


def build_protocol_class(**attributes: float) -> type[HttpProtocol]:
    """Return a protocol class with its own attributes, for `uvicorn.Config(http=...)`."""
    return type("Protocol", (HttpProtocol,), attributes)
