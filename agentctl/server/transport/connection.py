"""The deadlines and the end of a connection.

A slow client is disconnected at a deadline, a client that reads nothing after `stalled_seconds`,
and a connection ends in a way that lets the client read the last response.
"""

from __future__ import annotations

import asyncio
import select
import sys
from asyncio import TimerHandle
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, cast

from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from agentctl.errors import AgentctlError, InternalError, TooLarge
from agentctl.records.text import new_id
from agentctl.server.answers import add_common_headers, error_response

MAXIMUM_DRAINED_BYTES = 65_536
"""An unwanted body up to this size is read to its end, so that the connection can be kept."""

_JOINED_BYTES = 16_384
"""Up to this size, a copy of the body to the head costs less than a second system call."""

_FRAMING = b"transfer-encoding"

_CONTROLS = bytes({*range(32), 127} - {9})
"""Characters that no header field can contain (RFC 9110 5.5)."""

HEADER_SECONDS = 10.0
"""Time to receive the headers of a request; then the connection is closed."""

BODY_SECONDS = 30.0
"""Time to receive the body of a request; then the connection is closed."""

SLOWEST_BODY = 131_072
"""Bytes a second at which an announced body must arrive: a large one has more time."""

LONGEST_BODY_SECONDS = 570.0
"""Time to receive an announced body at most."""

LINGER_SECONDS = 2.0
"""Time to discard what a rejected client still sends, so that it can read the response."""

PEER_CHECK_SECONDS = 1.0
"""Interval of the checks for a disconnect while no bytes are read from a connection."""

READ_SECONDS = 0.02
"""Time until the bytes that a connection has received are read."""

_DISCONNECTED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

IDLE, HEAD, BODY = range(3)
"""Phases of reading: no byte of a request yet, a head, a body."""


class ResponseTransport:
    """The transport as a response uses it.

    `close` leaves the close to the protocol, which may have to let the client read the response
    first. A head is written together with the first part of the body: uvloop does a system call
    for each write, and one less saves 2 to 4 microseconds of a response (docs/decisions/0030).
    """

    __slots__ = ("_close", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close: Callable[[], None] | None = close
        self._head = b""
        self.is_closing = transport.is_closing

    def hold(self, head: bytes) -> None:
        """Keep the head of a response until the first part of its body is written."""
        self._head = head

    def write(self, data: bytes) -> None:
        """Write `data`, after the head if one is kept."""
        head = self._head
        self._head = b""
        if not head:
            self._transport.write(data)
        elif len(data) < _JOINED_BYTES:
            self._transport.write(b"".join((head, data)))
        else:
            self._transport.writelines((head, data))

    def close(self) -> None:
        """Have the protocol close the connection when everything is written."""
        if self._head:
            self.write(b"")
        if self._close is not None:
            self._close()

    def release(self) -> None:
        """Break the reference cycle with the closed protocol, so that it is freed at once."""
        self._close = None


class RequestCycle(RequestResponseCycle):
    """uvicorn's cycle with error bodies of agentctl and a faster head of the response."""

    length = 0
    """Announced length of the request body in bytes, or `CHUNKED`."""

    ends_by_close = False
    """True if the close of the connection ends the body of the response: a client of HTTP/1.0 reads
    no chunks, and the length is not known (RFC 9112 6.1, 6.3)."""

    @property
    def unfinished(self) -> bool:
        """True until the response is complete or the client has disconnected."""
        return not (self.response_complete or self.disconnected)

    @property
    def streaming(self) -> bool:
        """True while a response without an announced length is sent."""
        return self.unfinished and (bool(self.chunked_encoding) or self.ends_by_close)

    def disconnect(self) -> None:
        """Report to the application that the client has disconnected; drop what it still sends."""
        self.disconnected = True
        self.message_event.set()

    def send(self, message: ASGISendEvent) -> Coroutine[Any, Any, None]:
        if not self.response_started:
            return self._send_head(message)
        if self.ends_by_close and not message.get("more_body", False):
            # uvicorn compares the last part with the rest of an announced length.
            self.expected_content_length = len(cast("bytes", message.get("body", b"")))
        return super().send(message)

    async def _send_head(self, message: ASGISendEvent) -> None:
        """Send the head of a response.

        uvicorn builds the head in a loop over its fields. This method builds a usual head at once
        and leaves any other head to uvicorn.
        """
        start = cast("HTTPResponseStartEvent", message)
        fields = [*self.default_headers, *start.get("headers", ())]
        by_name = dict(fields)
        length = by_name.get(b"content-length")
        if length is None and self.scope["http_version"] == "1.0":
            await self._send_head_without_length(start)
            return

        special = b"connection" in by_name or b"transfer-encoding" in by_name
        special = special or self.access_log or self.flow.write_paused
        if length is None or self.disconnected or special:
            await super().send(message)
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        self.chunked_encoding = False
        self.expected_content_length = int(length)
        lines = [STATUS_LINE[start["status"]][:-2], *map(b": ".join, fields)]
        if not self.keep_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        if len(head.translate(None, _CONTROLS)) != len(head) - 2 * (len(lines) - 1):
            raise RuntimeError("a header field contains a control character")
        transport = cast("ResponseTransport", self.transport)
        transport.hold(head + b"\r\n\r\n")
        if self.scope["method"] == "HEAD":
            transport.write(b"")

    async def _send_head_without_length(self, start: HTTPResponseStartEvent) -> None:
        """Send the head of a response to a client of HTTP/1.0, which the close ends.

        uvicorn announces chunks for each response without a length, also to such a client.
        """
        fields = [
            (name, value) for name, value in start.get("headers", ()) if name.lower() != _FRAMING
        ]
        self.ends_by_close = True
        self.keep_alive = False
        self.chunked_encoding = False
        self.expected_content_length = sys.maxsize
        await super().send({**start, "headers": fields})

    async def send_500_response(self) -> None:
        """Send a 500 for a request that the application left without a response."""
        response = error_response(InternalError())
        headers = [*add_common_headers(response.raw_headers, new_id()), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send(
            {"type": "http.response.body", "body": bytes(response.body), "more_body": False}
        )


class BodyRequestCycle(RequestCycle):
    """A request with a body. Its connection is closed if the rest of the body is too long."""

    def send(self, message: ASGISendEvent) -> Coroutine[Any, Any, None]:
        if not self.response_started:
            # The rest of the body is not read if it is too large, or if the client waits for a 100
            # (RFC 9110 10.1.1) that is not sent.
            is_long = not 0 <= self.length <= MAXIMUM_DRAINED_BYTES
            is_unread = self.more_body and (self.waiting_for_100_continue or is_long)
            if is_unread or message.get("status") == TooLarge.status:
                self.keep_alive = False
        return super().send(message)


def error_response_bytes(error: AgentctlError, request_id: str) -> bytes:
    """Return the bytes of an error response after which the connection is closed."""
    response = error_response(error)
    fields = add_common_headers(response.raw_headers, request_id)
    lines = [name + b": " + value + b"\r\n" for name, value in fields]
    head = b"".join([STATUS_LINE[error.status], *lines, b"connection: close\r\n\r\n"])
    return head + bytes(response.body)


class _Flow(FlowControl):
    """Flow control that does not read while received bytes wait to be parsed."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class TimedConnection(HttpToolsProtocol):
    """The base of `HttpProtocol`: deadlines and lingering close.

    Attributes:
        header_seconds: from the start of a connection, or from the first byte of a later request,
            to the end of the headers.
        body_seconds: from the end of the headers to the end of the body.
        stalled_seconds: time until a client that reads nothing of a response is disconnected.
        keeps_alive: False if each further response closes its connection.
    """

    header_seconds: ClassVar[float] = HEADER_SECONDS
    body_seconds: ClassVar[float] = BODY_SECONDS
    stalled_seconds: ClassVar[float] = 30.0
    keeps_alive: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = IDLE
        self._latest: RequestCycle | None = None  # of the latest parsed head
        self._running: RequestCycle | None = None  # the request that is processed
        self._discarding = False  # received bytes are thrown away
        self._closing = False  # no further response is sent
        self._deadline: TimerHandle | None = None
        self._deadline_phase = IDLE
        self._stall_timer: TimerHandle | None = None
        self._peer_timer: TimerHandle | None = None
        self._idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._response_transport = ResponseTransport(transport, self._close_after_response)
        self._set_deadline(HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._discarding = True
        self._cancel_timer(self._deadline)
        self._cancel_timer(self._stall_timer)
        self._cancel_timer(self._peer_timer)
        self.pipeline.clear()
        if self._running is not None and self._running.unfinished:
            self._running.disconnect()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._response_transport.release()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_send_buffer()

    def resume_writing(self) -> None:
        self._cancel_timer(self._stall_timer)
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestCycle, app: Any) -> None:  # type: ignore[override]
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # Disconnects

    def _pause_reading(self) -> None:
        """Read no further bytes until the response is complete, and check for a disconnect.

        The end of a connection is read after its last bytes, so it is not noticed otherwise.
        """
        self.flow.pause_reading()
        if self._peer_timer is None:
            self._peer_timer = self.loop.call_later(PEER_CHECK_SECONDS, self._check_peer)

    def _check_peer(self) -> None:
        self._peer_timer = None
        if not self.flow.read_paused or self.transport.is_closing():
            return
        if is_disconnected(self.transport.get_extra_info("socket").fileno()):
            self._close_transport()
        else:
            self._peer_timer = self.loop.call_later(PEER_CHECK_SECONDS, self._check_peer)

    # Close

    @property
    def awaits_first_request(self) -> bool:
        """True if no request has come yet, or a part of one."""
        return not self._closing and (self.cycle is None or self._phase != IDLE)

    @property
    def awaits_request(self) -> bool:
        """True if the first or another request may come, now or after a response."""
        is_kept = self.cycle is None or self.cycle.keep_alive
        return not self._closing and (is_kept or self._phase != IDLE)

    def stop_keeping_alive(self) -> None:
        """Have a response that has not begun announce the end of the connection."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close the connection after its response, or now if no request has been received.

        To close a socket with unread bytes resets the connection, and the client cannot know if its
        request had an effect. So a request that has been received gets its response.
        """
        if self._closing or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif self._has_unread_request():
            self.loop.call_later(READ_SECONDS, self.shutdown)
        else:
            self._close_transport()

    def _has_unread_request(self) -> bool:
        """Return True if a next request has been received and not read: the event loop was busy.

        The event loop executes timers before it reads.
        """
        descriptor = self.transport.get_extra_info("socket").fileno()
        return self._phase == IDLE and descriptor >= 0 and has_unread_bytes(descriptor)

    def _close_after_response(self) -> None:
        if self._phase == IDLE and not self.pipeline:
            self._close_transport()
        else:
            self._linger()

    def _linger(self) -> None:
        """Close our side and discard what the client still sends.

        If a socket is closed with unread bytes, the kernel resets the connection, and the client
        may lose the response (RFC 9112 9.6).
        """
        self._discarding = self._closing = True
        self.pipeline.clear()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._cancel_timer(self._deadline)
        self._deadline = self.loop.call_later(LINGER_SECONDS, self._close_transport)

    def _close_transport(self) -> None:
        self._discarding = self._closing = True
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_send_buffer()

    # Deadlines

    def _set_deadline(self, phase: int, *, restart: bool = False) -> None:
        if self._deadline is not None:
            if self._deadline_phase == phase and not restart:
                return
            self._deadline.cancel()
        seconds = self.body_seconds if phase == BODY else self.header_seconds
        if phase == BODY and self._latest is not None:
            seconds += min(max(self._latest.length, 0) / SLOWEST_BODY, LONGEST_BODY_SECONDS)
        self._deadline_phase = phase
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        self._cancel_timer(self._deadline)
        self._deadline = None
        if self._running is not None and self._running.response_complete:
            self._start_keep_alive()  # The body was longer than its response.

    def _start_keep_alive(self) -> None:
        """Start the keep-alive time: all requests have their responses.

        The timer runs over many requests, because to set one costs more than to read the clock.
        """
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._running is None or self._running.unfinished or self._deadline is not None:
            return  # The end of the request, or the deadline, continues.
        remaining = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if remaining <= 0 and self._has_unread_request():
            remaining = READ_SECONDS
        if remaining <= 0:
            self._close_transport()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                remaining, self.timeout_keep_alive_handler
            )

    def _on_deadline(self) -> None:
        if self._has_unread_request():
            self._deadline = self.loop.call_later(READ_SECONDS, self._on_deadline)
            return
        self._deadline = None
        running = self._running
        server_is_slow = running is not self._latest or self._phase != BODY
        if (
            running is not None
            and running.unfinished
            and (server_is_slow or running.response_started)
        ):
            self._set_deadline(self._deadline_phase)
        else:
            self._close_transport()

    def _watch_send_buffer(self) -> None:
        self._cancel_timer(self._stall_timer)
        size = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(
            self.stalled_seconds, self._check_send_buffer, size
        )

    def _check_send_buffer(self, before: int) -> None:
        running = self._running
        streaming = running is not None and running.streaming
        if streaming or self.transport.get_write_buffer_size() < before:
            self._watch_send_buffer()
        else:
            self.transport.abort()

    def _cancel_timer(self, timer: TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def has_unread_bytes(descriptor: int) -> bool:
    """Return True if a socket has received bytes that were not read, or its end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def is_disconnected(descriptor: int) -> bool:
    """Return True if the peer of a socket has closed or reset it, also before all is read."""
    poll = select.poll()
    poll.register(descriptor, _DISCONNECTED)
    return bool(poll.poll(0))
