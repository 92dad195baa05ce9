"""The deadlines and the end of a connection.

A slow client is disconnected at a deadline, a client that reads nothing after `stalled_seconds`,
and a connection ends in a way that lets the client read the last response.
"""

from __future__ import annotations

import asyncio
import select
from asyncio import TimerHandle
from typing import Any, ClassVar

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentctl.config.settings import Limits
from agentctl.server.transport.cycle import RequestCycle, ResponseTransport

LINGER_SECONDS = 2.0
"""Time to discard what a rejected client still sends, so that it can read the response."""

PEER_CHECK_SECONDS = 1.0
"""Interval of the checks for a disconnect while no bytes are read from a connection."""

READ_SECONDS = 0.02
"""Time until the bytes that a connection has received are read."""

_DISCONNECTED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

IDLE, HEAD, BODY = range(3)
"""Phases of reading: no byte of a request yet, a head, a body."""


class _Flow(FlowControl):
    """Flow control that does not read while received bytes wait to be parsed."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class TimedConnection(HttpToolsProtocol):
    """The base of `HttpProtocol`: deadlines and lingering close.

    Attributes:
        limits: the settings `[limits]`; its times are used here.
        stalled_seconds: time until a client that reads nothing of a response is disconnected.
        keeps_alive: False if each further response closes its connection.
    """

    limits: ClassVar[Limits] = Limits()
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
        limits = self.limits
        seconds = limits.body_seconds if phase == BODY else limits.header_seconds
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
