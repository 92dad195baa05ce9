"""The deadlines and the end of a connection.

A slow client is disconnected at a deadline, a client that reads nothing after `stalled_seconds`,
and a connection ends in a way that lets the client read the last response.
"""

from __future__ import annotations

import asyncio
import select
from asyncio import TimerHandle
from collections.abc import Callable
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agentctl.server.transport.guard import ENDLESS

HEADER_SECONDS = 10.0
"""Time to receive the headers of a request; then the connection is closed."""

BODY_SECONDS = 30.0
"""Time to receive the body of a request; then the connection is closed."""

SLOWEST_BODY = 131_072
"""Bytes a second at which an announced body must arrive: a large body has more time."""

LONGEST_BODY_SECONDS = 570.0
"""Maximum time to receive an announced body, in addition to `BODY_SECONDS`."""

LINGER_SECONDS = 2.0
"""Time to discard what a rejected client still sends, so that it can read the response."""

READ_SECONDS = 0.02
"""Time until the bytes that a connection has received are read."""

IDLE, HEAD, BODY = range(3)
"""Phases of reading: no byte of a request yet, a head, a body."""


class LingeringTransport:
    """The transport of a connection, whose `close` lets the client read the last response.

    If a socket is closed with unread bytes, the kernel resets the connection, and the client may
    lose the response (RFC 9112 9.6). So the server closes its own side, and discards for a while
    what the client still sends.
    """

    lingers = False
    """True if the client may still be sending. The protocol sets it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return

        self._is_closing = True
        if not self.lingers:
            self._transport.close()
            return

        self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)


class TimedConnection(HttpToolsProtocol):
    """The base of `HttpProtocol`: deadlines, the end of a connection, and its hand-over."""

    header_seconds: ClassVar[float] = HEADER_SECONDS
    """Maximum time until the end of the headers.

    It begins with the connection, or with the first byte of a later request.
    """

    body_seconds: ClassVar[float] = BODY_SECONDS
    """Maximum time from the end of the headers to the end of the body."""

    stalled_seconds: ClassVar[float] = 30.0
    """Time until a client that reads nothing of a response is disconnected."""

    keeps_alive: ClassVar[bool] = True
    """False if each further response closes its connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = IDLE
        # The number of completely received requests.
        self._messages = 0
        # The cycle of the request that is processed.
        self._running: RequestResponseCycle | None = None
        # True if the connection continues when the whole request comes before its response.
        self._is_kept = True

        self._deadline: TimerHandle | None = None
        # The request and the phase that the deadline is for.
        self._awaited = (0, IDLE)
        self._stall_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = LingeringTransport(transport)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        self._watch_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        self._end_stall_timer()
        # uvicorn would tell only the latest request, and leave the keep-alive timer of a connection
        # that was reset.
        self.pipeline.clear()
        if self._running is not None:
            self.cycle = self._running
        super().connection_lost(None)

    # Requests

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        # A response that starts before the end of the body closes the connection: what the client
        # still sends is not read to its end.
        self._is_kept = self.cycle.keep_alive
        self.cycle.keep_alive = False
        self._phase = BODY

    def on_message_complete(self) -> None:
        self._phase = IDLE
        self._messages += 1
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._is_kept and self.keeps_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_send_buffer()

    # Deadlines

    def _watch_client(self) -> None:
        """Start the time for the head or body that is received, unless it runs already."""
        awaited = (self._messages, self._phase)
        if self._deadline is None or awaited != self._awaited:
            self._end_deadline()
            self._awaited = awaited
            self._start_deadline()

    def _start_deadline(self) -> None:
        seconds = self.header_seconds
        if self._phase == BODY:
            announced = int(dict(self.headers).get(b"content-length", b"0"))
            seconds = self.body_seconds + min(announced / SLOWEST_BODY, LONGEST_BODY_SECONDS)
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        if self._awaits_response():
            self._start_deadline()
        else:
            self._deadline = self._close_unless_received(self._on_deadline)

    def _awaits_response(self) -> bool:
        """Return True if the client may wait for the server before it sends more."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self._phase != BODY or bool(self.pipeline) or self.cycle.response_started

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, unless a request has come since the last response."""
        self.timeout_keep_alive_task = None
        if self.cycle.response_complete and self._deadline is None:
            next_attempt = self._close_unless_received(self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = next_attempt

    def _close_unless_received(self, close_later: Callable[[], None]) -> TimerHandle | None:
        """Close the connection; try it again soon if another request has been received.

        The event loop executes timers before it reads. To close a socket with unread bytes resets
        the connection, and the client cannot know if its request had an effect.
        """
        descriptor = self.transport.get_extra_info("socket").fileno()
        if self._phase == IDLE and descriptor >= 0 and has_unread_bytes(descriptor):
            return self.loop.call_later(READ_SECONDS, close_later)
        self.transport.close()
        return None

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_send_buffer()

    def resume_writing(self) -> None:
        self._end_stall_timer()
        super().resume_writing()

    def _watch_send_buffer(self) -> None:
        self._end_stall_timer()
        size = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(
            self.stalled_seconds, self._check_send_buffer, size
        )

    def _end_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _check_send_buffer(self, size_before: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size == 0:
            return

        # The buffer of a stream grows while its client reads, as events are added.
        if size < size_before or self._is_streaming():
            self._watch_send_buffer()
        else:
            self.transport.abort()

    def _is_streaming(self) -> bool:
        """Return True while a response without an announced length is sent."""
        cycle = self._running
        if cycle is None or cycle.response_complete:
            return False
        return bool(cycle.chunked_encoding) or cycle.expected_content_length > ENDLESS // 2

    # Hand-over to another process

    @property
    def awaits_first_request(self) -> bool:
        """True if no complete request has come yet, and the connection is open."""
        if self.transport.is_closing():
            return False
        return self.cycle is None or self._phase != IDLE

    @property
    def awaits_request(self) -> bool:
        """True if the first or another request may come, now or after a response."""
        if self.transport.is_closing():
            return False
        is_kept = self.cycle is None or self.cycle.keep_alive
        return is_kept or self._phase != IDLE

    def stop_keeping_alive(self) -> None:
        """Have a response that has not begun announce the end of the connection."""
        self._is_kept = False
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close the connection after the response, or now if no request has been received."""
        self._is_kept = False
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self._close_unless_received(self.shutdown)


def has_unread_bytes(descriptor: int) -> bool:
    """Return True if a socket has received bytes that were not read, or its end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
