"""HTTP below the application: what is a request, how large and slow it may be, how it is refused.

uvicorn's protocol over llhttp, hardened (the version is pinned to a minor series, since much of
its inside is used here):

- a head has a size, a number of lines and a time, a body has a time, both from their first byte;
- what only some programs take for HTTP is refused, and the connection closed with the answer;
- refusals have the shape of every error, stand behind the answers before them, and can be read:
  a connection that is closed on what was not read would lose them to a reset;
- trailers never become header fields;
- whoever does not take an answer does not hold the connection for ever.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import httptools

from agentctl.config.settings import Limits
from agentctl.errors import AgentctlError, BadRequest, HeaderTooLarge
from agentctl.records.ids import new_id
from agentctl.records.log_context import set_log_context
from agentctl.server.transport.connection import BODY, HEAD, IDLE, TimedConnection
from agentctl.server.transport.cycle import BodyRequestCycle, RequestCycle, error_response_bytes
from agentctl.server.transport.request_head import (
    CHUNKED,
    NOT_HTTP,
    BodyFraming,
    check_head,
    check_request_line,
    head_size,
)

if TYPE_CHECKING:
    from uvicorn._types import HTTPScope

__all__ = ["HttpProtocol", "build_protocol_class"]

_log = logging.getLogger("agentctl.server")

PARSE_BYTES = 8_192
"""Bytes that are parsed at once: so coarsely is known where in what was received the parser is."""

CHUNK_OVERHEAD = 8
"""Bytes around every byte of a body in chunks; chunks of one byte have five."""


class HttpProtocol(TimedConnection):
    """One connection, under the limits of its class (see `limited`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._messages = 0  # read to their ends
        self._sent = b""  # the pieces that the head under way is in
        self._first = True  # whether it stands at their beginning
        self._counted = 0  # bytes of the head under way, or of what is around the body's
        self._refusal: AgentctlError | None = None
        self._rejection_id = ""  # of the answer that tells it
        self._unread = 0  # length of a body that the parser will not read

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        messages = self._messages
        rest = self._parse(data) if len(data) <= PARSE_BYTES else data
        if rest:
            self._take(rest)
        if self._phase != IDLE or self._messages == messages or self._deadline is not None:
            self._update_deadline(anew=self._messages != messages)

    def _update_deadline(self, *, anew: bool) -> None:
        """Set the deadline of what is under way. `anew`: something new is."""
        if self._deaf:
            return
        if self._phase == IDLE and anew:
            self._clear_deadline()
        else:
            self._set_deadline(self._phase or HEAD, anew=anew)

    # What the parser calls

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._phase = HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == HEAD:
            self.headers.append((name.lower(), value))
        elif self._latest is not None:  # a trailer, which is no field of the head
            self._latest.keep_alive = False

    def on_headers_complete(self) -> None:
        method, version = self.parser.get_method(), self.parser.get_http_version()
        try:
            body = self._checked(method, version)
        except AgentctlError as refusal:
            self._refusal = refusal
            raise
        self._phase = BODY
        self._counted = 0
        if body.length and self.parser.should_upgrade():
            self._unread = body.length
        self.scope = self._scope(method, version)
        cycle = self.cycle = self._latest = self._create_cycle(version, body)
        if self._running is None or self._running.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._counted -= CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._unread:
            self._phase = IDLE
            self._first = False
            self._messages += 1
            if self._latest is not None and not self._latest.response_complete:
                self._latest.more_body = False
                self._latest.message_event.set()

    # Reading

    def _take(self, data: bytes) -> None:
        for start in range(0, len(data), PARSE_BYTES):
            piece = data[start : start + PARSE_BYTES]
            while piece and not self._deaf:
                piece = self._parse(piece)

    def _parse(self, piece: bytes) -> bytes:
        """Parse a piece; what is behind the place where the parser stopped is returned."""
        messages, rest = self._messages, b""
        if self._sent:
            self._sent += piece
        else:
            self._sent, self._first = piece, self._phase == IDLE
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stop:
            rest = piece[stop.args[0] :]
            self._ignore_upgrade()
        except httptools.HttpParserError:
            self._refuse(self._refusal or BadRequest(NOT_HTTP))
            return b""
        if self._phase == IDLE and self._messages != messages:
            self._sent, self._counted = b"", 0
        else:
            self._count(len(piece), began=self._messages != messages)
        return rest

    def _count(self, length: int, *, began: bool) -> None:
        """Bound what is no whole head, and what is around a body in chunks.

        Args:
            length: bytes that were parsed.
            began: what is under way began somewhere in them.
        """
        if self._phase == BODY:
            self._sent = b""
            self._counted += length if self._latest and self._latest.length == CHUNKED else 0
        else:
            self._counted = 0 if began else self._counted + length
        if self._counted > self.limits.header_bytes:
            self._refuse(BadRequest(NOT_HTTP) if self._phase == BODY else _header_too_large())

    def _checked(self, method: bytes, version: str) -> BodyFraming:
        """What comes behind the head that was read.

        Raises:
            AgentctlError: the head is refused.
        """
        fields, limits, sent = self.headers, self.limits, self._sent
        if len(fields) > limits.header_count:
            raise HeaderTooLarge("The request has too many header fields")
        if len(sent) > limits.header_bytes and head_size(self.url, fields) > limits.header_bytes:
            raise _header_too_large()
        check_request_line(method, self.url, version, sent, first=self._first)
        return check_head(method, self.url, version, fields)

    def _scope(self, method: bytes, version: str) -> HTTPScope:
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
            version == "1.1" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        cycle.length = body.length
        return cycle

    def _ignore_upgrade(self) -> None:
        """Go on behind a head that asks for another protocol (RFC 9110 7.8: it may be ignored).

        The parser takes what follows for that protocol, so a body is left to one of its own.
        """
        if self._unread and self._latest is not None:
            coded, length = self._unread == CHUNKED, self._unread
            framing = b"Transfer-Encoding: chunked" if coded else b"Content-Length: %d" % length
            self._unread = 0
            self._latest.keep_alive = False
            self.parser = httptools.HttpRequestParser(_BodyCallbacks(self))
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")

    # Answering

    def on_response_complete(self) -> None:
        if self._closing:
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*cast("tuple[RequestCycle, Any]", self.pipeline.pop()))
        elif self._refusal is not None:
            self._tell(self._refusal)
        else:
            self._rest()

    def _refuse(self, refusal: AgentctlError) -> None:
        """Take no more requests, and say why: behind the answers to those before."""
        self._rejection_id = new_id()
        Context().run(_log_rejection, refusal, self._rejection_id)
        self._deaf = True
        self._refusal = refusal
        self._cancel_timer(self._deadline)
        running = self._running
        if running is None or not running.unfinished:
            self._tell(refusal)
        elif self._phase != BODY:
            self.flow.pause_reading()
        elif running is not self._latest:
            self.pipeline.popleft()
            self.flow.pause_reading()
        else:
            running.leave()
            if running.response_started:
                self._linger()
            else:
                self._tell(refusal)

    def _tell(self, refusal: AgentctlError) -> None:
        self.transport.write(error_response_bytes(refusal, self._rejection_id))
        self._linger()


class _BodyCallbacks:
    """What a parser tells of the body that it alone is for: its trailers are nobody's."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def build_protocol_class(limits: Limits) -> type[HttpProtocol]:
    """The protocol under these limits, for `uvicorn.Config(http=...)`."""
    return type("Protocol", (HttpProtocol,), {"limits": limits})


def _log_rejection(refusal: AgentctlError, request_id: str) -> None:
    """In a context of its own: nothing of it is about the request before."""
    set_log_context(request_id=request_id)
    _log.info("what was sent is no request: %s", refusal.detail)


def _header_too_large() -> HeaderTooLarge:
    return HeaderTooLarge("The header of the request is too large")
