"""HTTP/1.1 for the server: limits of requests, strict parsing, and readable rejections.

A subclass of uvicorn's protocol over llhttp (docs/decisions/0030). uvicorn is pinned to a minor
series, because private attributes of its classes are used in this package.

- A head has a maximum size, number of lines and time; a body has a maximum time.
- A request that only some programs accept as HTTP is rejected, and its connection closed. llhttp
  rejects most invalid requests; checks of the request line and the header fields (RFC 9110, RFC
  9112) reject the rest, and legal requests that other programs read differently, which would allow
  request smuggling.
- A rejection has the shape of every error, comes after the responses to earlier requests, and is
  readable: the connection is not reset while the client still sends.
- Trailers never become header fields.
- A client that does not read its response is disconnected.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Sequence
from contextvars import Context
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import httptools
from uvicorn._types import HTTPScope

from agentctl.errors import AgentctlError, BadRequest, HeaderTooLarge
from agentctl.records.logs import set_log_context
from agentctl.records.text import new_id
from agentctl.server.transport.connection import (
    BODY,
    HEAD,
    IDLE,
    BodyRequestCycle,
    RequestCycle,
    TimedConnection,
    error_response_bytes,
)

HeaderFields = Sequence[tuple[bytes, bytes]]

NOT_HTTP = "The request is not valid HTTP"

CHUNKED = -1
"""The length of a chunked body, which is unknown until its end."""

_LINE_ENDS = {"1.0": b" HTTP/1.0\r\n", "1.1": b" HTTP/1.1\r\n"}
"""The end of the request line, by HTTP version."""

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_HIGHEST_PORT = 65_535
_LONGEST_HOST = 300

_SINGLE_FIELDS = {
    b"host": "Host",
    b"authorization": "Authorization",
    b"content-type": "Content-Type",
    b"content-length": "Content-Length",
    b"transfer-encoding": "Transfer-Encoding",
}
"""Fields that may occur once: programs disagree which one of several counts."""

_log = logging.getLogger("agentctl.server")

PARSE_BYTES = 8_192
"""Bytes that are parsed at once: the position of the parser is known in steps of this size."""

MAXIMUM_PIPELINED = 16
"""Parsed requests that wait for the response to an earlier one; then a connection is not read and
what has been read is not parsed. Requests of one step of the parser may be above it."""

MAXIMUM_HEAD_BYTES = 16_384
"""Bytes of the request line and the headers together."""

MAXIMUM_FIELDS = 100
"""Header fields of a request."""

STEP_BYTES = 512
"""Bytes that are parsed at once if they contain more heads than that."""

CHUNK_OVERHEAD = 8
"""Allowed overhead for each byte of a chunked body; chunks of one byte have five bytes of it."""


class BodyFraming(NamedTuple):
    """The framing of a body, as its header section announces it.

    Attributes:
        length: number of bytes; 0 without a body, `CHUNKED` for a chunked one.
        awaited: True if the client waits for a 100 (RFC 9110 10.1.1).
    """

    length: int
    awaited: bool


_NO_BODY = BodyFraming(0, awaited=False)


def check_request_line(
    method: bytes, target: bytes, version: str, received: bytes, *, first: bool
) -> None:
    """Compare the parsed request line with the received bytes, because llhttp skips spaces.

    Args:
        method, target, version: the parts of the line, as llhttp parsed them.
        received: the received bytes that contain the head.
        first: True if the head is at the start of these bytes, after empty lines at most (RFC
            9112 2.2); False if it follows another request.

    Raises:
        BadRequest: the bytes do not contain the line, or the version is not 1.0 or 1.1.
    """
    line = method + b" " + target + _LINE_ENDS.get(version, b"\0")
    if received.startswith(line) or (not first and line in received):
        return
    while received.startswith(b"\r\n"):
        received = received[2:]
    if not received.startswith(line):
        raise BadRequest(NOT_HTTP)


def head_size(target: bytes, fields: HeaderFields) -> int:
    """Return the size of a head in bytes, without optional spaces."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in fields)


def check_head(method: bytes, target: bytes, version: str, fields: HeaderFields) -> BodyFraming:
    """Check a head and return the framing of the body after it.

    Raises:
        BadRequest: the target is not a path with a query (RFC 9112 3.2.1: other forms are for
            proxies); there is not exactly one valid Host; a field that may occur once is repeated;
            a transfer coding is not chunked, or is used with HTTP/1.0.
    """
    if target[0] != 0x2F or b"#" in target or method == b"CONNECT":
        raise BadRequest(NOT_HTTP)
    by_name = dict(fields)
    if len(by_name) != len(fields):
        names = [name for name, _ in fields]
        for name, label in _SINGLE_FIELDS.items():
            if names.count(name) > 1:
                raise BadRequest(f"The header field {label} is given more than once")
    host = by_name.get(b"host", b"")
    if len(host) > _LONGEST_HOST or not _is_host(host):
        raise BadRequest("The header field Host is missing or not valid")
    coding = by_name.get(b"transfer-encoding")
    if coding is None and b"content-length" not in by_name:
        return _NO_BODY
    awaited = version == "1.1" and by_name.get(b"expect", b"").lower() == b"100-continue"
    if coding is None:
        length = int(by_name[b"content-length"])
        return BodyFraming(length, awaited and length > 0)
    if version != "1.1" or coding.lower() != b"chunked" or b"content-length" in by_name:
        raise BadRequest(NOT_HTTP)
    return BodyFraming(CHUNKED, awaited)


@functools.lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    """Return True for a name or address with an optional port (RFC 9110 7.2)."""
    match = _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= _HIGHEST_PORT


class HttpProtocol(TimedConnection):
    """One connection, with the limits of its class (see `build_protocol_class`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._messages = 0  # number of completely parsed requests
        self._head_bytes = b""  # received bytes that contain the current head
        self._head_is_first = True  # the head starts at the first of these bytes
        self._overhead = 0  # bytes of an incomplete head, or chunk overhead of the body
        self._rejection: AgentctlError | None = None
        self._rejection_id = ""  # request id of its response
        self._unparsed_body = 0  # length of a body that llhttp does not parse after an upgrade
        self._held = b""  # received bytes that wait for the responses to earlier requests

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        messages = self._messages
        step = STEP_BYTES if data.count(b"\r\n\r\n") > MAXIMUM_PIPELINED else PARSE_BYTES
        for start in range(0, len(data), step):
            if len(self.pipeline) >= MAXIMUM_PIPELINED:
                self._hold(data[start:])
                return
            piece = data[start : start + step] if len(data) > step else data
            while piece and not self._discarding:
                piece = self._parse(piece)
        if self._discarding:
            return
        restart = self._messages != messages
        if self._phase != IDLE or not restart:
            self._set_deadline(self._phase or HEAD, restart=restart)
        elif self._deadline is not None:
            self._clear_deadline()

    def _hold(self, data: bytes) -> None:
        """Keep received bytes, and read no more, until the parsed requests have their responses."""
        self._held = data
        self._pause_reading()
        self._flow.is_held = True
        self._clear_deadline()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._phase = HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == HEAD:
            self.headers.append((name.lower(), value))
        elif self._latest is not None:  # A trailer is not a header field: ignore it.
            self._latest.keep_alive = False

    def on_headers_complete(self) -> None:
        method = self.parser.get_method()
        version = self.parser.get_http_version()
        try:
            body = self._check_head(method, version)
        except AgentctlError as rejection:
            self._rejection = rejection
            raise
        self._phase = BODY
        self._overhead = 0
        if body.length and self.parser.should_upgrade():
            self._unparsed_body = body.length
        self.scope = self._build_scope(method, version)
        cycle = self.cycle = self._latest = self._create_cycle(version, body)
        if self._running is None or self._running.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self._pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._overhead -= CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._unparsed_body:
            self._phase = IDLE
            self._head_is_first = False
            self._messages += 1
            if self._latest is not None and not self._latest.response_complete:
                self._latest.more_body = False
                self._latest.message_event.set()

    # Parsing

    def _parse(self, piece: bytes) -> bytes:
        messages = self._messages
        rest = b""
        if self._head_bytes:
            self._head_bytes += piece
        else:
            self._head_bytes = piece
            self._head_is_first = self._phase == IDLE
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            rest = piece[upgrade.args[0] :]
            self._ignore_upgrade()
        except httptools.HttpParserError:
            self._reject(self._rejection or BadRequest(NOT_HTTP))
            return b""
        if self._phase == IDLE and self._messages != messages:
            self._head_bytes = b""
            self._overhead = 0
        else:
            self._check_overhead(len(piece), started=self._messages != messages)
        return rest

    def _check_overhead(self, length: int, *, started: bool) -> None:
        """Limit the bytes of an incomplete head and the overhead of a chunked body.

        Args:
            started: True if the current request started in these bytes.
        """
        if self._phase == BODY:
            self._head_bytes = b""
            self._overhead += length if self._latest and self._latest.length == CHUNKED else 0
        else:
            self._overhead = 0 if started else self._overhead + length
        if self._overhead > MAXIMUM_HEAD_BYTES:
            self._reject(BadRequest(NOT_HTTP) if self._phase == BODY else _header_too_large())

    def _check_head(self, method: bytes, version: str) -> BodyFraming:
        """Check the parsed head and return the framing of the body after it."""
        fields = self.headers
        head = self._head_bytes
        if len(fields) > MAXIMUM_FIELDS:
            raise HeaderTooLarge("The request has too many header fields")
        if len(head) > MAXIMUM_HEAD_BYTES and head_size(self.url, fields) > MAXIMUM_HEAD_BYTES:
            raise _header_too_large()
        check_request_line(method, self.url, version, head, first=self._head_is_first)
        return check_head(method, self.url, version, fields)

    def _build_scope(self, method: bytes, version: str) -> HTTPScope:
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": method.decode("ascii"),
            "root_path": self.root_path,
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def _create_cycle(self, version: str, body: BodyFraming) -> RequestCycle:
        kind = BodyRequestCycle if body.length else RequestCycle
        cycle = kind(
            self.scope,
            cast(asyncio.Transport, self._response_transport),
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            body.awaited,
            version == "1.1" and self.keeps_alive and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        cycle.length = body.length
        return cycle

    def _ignore_upgrade(self) -> None:
        """Continue after a head with an Upgrade, which may be ignored (RFC 9110 7.8).

        llhttp treats the following bytes as another protocol and cannot be resumed. So the body is
        given to a new parser, after a head with the same framing. Java's HttpClient sends such
        requests by default.
        """
        if self._unparsed_body and self._latest is not None:
            chunked = self._unparsed_body == CHUNKED
            length = self._unparsed_body
            framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % length
            self._unparsed_body = 0
            self._latest.keep_alive = False
            self.parser = httptools.HttpRequestParser(_BodyCallbacks(self))
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")

    # Responses

    def on_response_complete(self) -> None:
        if self._closing:
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*cast("tuple[RequestCycle, Any]", self.pipeline.pop()))
        elif self._rejection is not None:
            self._send_rejection(self._rejection)
        else:
            self._start_keep_alive()
        if self._held and not self.pipeline:
            held = self._held
            self._held = b""
            self._flow.is_held = False
            self.flow.resume_reading()
            self.data_received(held)

    def _reject(self, rejection: AgentctlError) -> None:
        self._rejection_id = new_id()
        Context().run(_log_rejection, rejection, self._rejection_id)
        self._discarding = True
        self._rejection = rejection
        self._cancel_timer(self._deadline)
        running = self._running
        if running is None or not running.unfinished:
            self._send_rejection(rejection)
        elif self._phase != BODY:
            self._pause_reading()
        elif running is not self._latest:
            self.pipeline.popleft()
            self._pause_reading()
        else:
            running.disconnect()
            if running.response_started:
                self._linger()
            else:
                self._send_rejection(rejection)

    def _send_rejection(self, rejection: AgentctlError) -> None:
        self.transport.write(error_response_bytes(rejection, self._rejection_id))
        self._linger()


class _BodyCallbacks:
    """Callbacks of a parser that parses only a body and ignores its trailers."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def build_protocol_class(**attributes: float) -> type[HttpProtocol]:
    """Return a protocol class with its own attributes, for `uvicorn.Config(http=...)`."""
    return type("Protocol", (HttpProtocol,), attributes)


def _log_rejection(rejection: AgentctlError, request_id: str) -> None:
    set_log_context(request_id=request_id)
    _log.info("rejected an invalid request: %s", rejection.detail)


def _header_too_large() -> HeaderTooLarge:
    return HeaderTooLarge("The header of the request is too large")
