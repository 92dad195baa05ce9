"""A connection as time and its other end treat it: deadlines, clients that take nothing, and ends
after which the last answer can still be read.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentctl.config.settings import Limits
from agentctl.server.transport.cycle import RequestCycle, ResponseTransport

__all__ = ["BODY", "HEAD", "IDLE", "TimedConnection"]

LINGER_SECONDS = 2.0
"""How long what a refused client still sends is thrown away, so that it reads the answer."""


IDLE, HEAD, BODY = range(3)
"""What is read: nothing yet, a head, or a body."""


class TimedConnection(HttpToolsProtocol):
    """What `Protocol` is beside reading requests.

    Attributes:
        limits: `[limits]`, of which it holds the times.
        stalled_seconds: how long an answer may wait for a client that takes nothing of it.
    """

    limits: ClassVar[Limits] = Limits()
    stalled_seconds: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = IDLE
        self._latest: RequestCycle | None = None  # of the last head that was read
        self._running: RequestCycle | None = None  # what is answered
        self._deaf = False  # what comes in is thrown away
        self._closing = False  # no answer is to follow
        self._deadline: TimerHandle | None = None
        self._awaited = IDLE
        self._stall: TimerHandle | None = None
        self._idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._response_transport = ResponseTransport(transport, self._finish)
        self._set_deadline(HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._cancel_timer(self._deadline)
        self._cancel_timer(self._stall)
        self.pipeline.clear()
        if self._running is not None and self._running.unfinished:
            self._running.leave()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._response_transport.let_go()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_send_buffer()

    def resume_writing(self) -> None:
        self._cancel_timer(self._stall)
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestCycle, app: Any) -> None:  # type: ignore[override]
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # Ending

    def _finish(self) -> None:
        """An answer was the last one of this connection."""
        if self._phase == IDLE and not self.pipeline:
            self._close_transport()
        else:
            self._linger()

    def _linger(self) -> None:
        """End our side, and throw away what still comes: a connection that is closed on unread
        bytes is reset, which takes the answer from the client (RFC 9112 9.6).
        """
        self._deaf = self._closing = True
        self.pipeline.clear()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._cancel_timer(self._deadline)
        self._deadline = self.loop.call_later(LINGER_SECONDS, self._close_transport)

    def _close_transport(self) -> None:
        self._deaf = self._closing = True
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_send_buffer()

    # Time

    def _set_deadline(self, phase: int, *, anew: bool = False) -> None:
        """Set the deadline of what is under way, unless it is set. `anew`: something new is."""
        if self._deadline is not None:
            if self._awaited == phase and not anew:
                return
            self._deadline.cancel()
        limits = self.limits
        seconds = limits.body_seconds if phase == BODY else limits.header_seconds
        self._awaited = phase
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        """All that came in was read."""
        self._cancel_timer(self._deadline)
        self._deadline = None
        if self._running is not None and self._running.response_complete:
            self._rest()  # the end of a body that nobody waited for

    def _rest(self) -> None:
        """Everything is answered: from now on nothing may come for so long. The timer is set once
        for many requests, since it costs more than a look at the clock.
        """
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._running is None or self._running.unfinished or self._deadline is not None:
            return  # which ends with a rest, or with a deadline
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self._close_transport()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                left, self.timeout_keep_alive_handler
            )

    def _on_deadline(self) -> None:
        """What is awaited has not come in time; while we are the slow ones there is no hurry."""
        self._deadline = None
        running = self._running
        ours = running is not self._latest or self._phase != BODY
        if running is not None and running.unfinished and (ours or running.response_started):
            self._set_deadline(self._awaited)
        else:
            self._close_transport()

    def _watch_send_buffer(self) -> None:
        self._cancel_timer(self._stall)
        left = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self.stalled_seconds, self._look, left)

    def _look(self, before: int) -> None:
        """Cut the connection when nothing has flowed; a stream is for those who write it."""
        running = self._running
        streaming = running is not None and running.streaming
        if streaming or self.transport.get_write_buffer_size() < before:
            self._watch_send_buffer()
        else:
            self.transport.abort()

    def _cancel_timer(self, timer: TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
