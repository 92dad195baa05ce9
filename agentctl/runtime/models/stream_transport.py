"""An HTTP/1.1 transport of httpx2 for streams: asyncio and httptools (decision 48).

A response is read as it arrives: all chunks of one read of the socket are one piece of the body.
The transport of httpx2 passes each chunk separately, through a cancel scope and two generators.

Connections are kept for the next request to the same origin in the same event loop. Nothing of a
response is left on a connection that is kept: what belongs to one request is in its `_Exchange`.
It knows no proxies: a client that needs one uses the transport of httpx2.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextvars import Context
from typing import Any, Protocol, TypeVar, cast

import httptools
import httpx2

from agentctl.work.send_gate import current_send_gate

KEEPALIVE_SECONDS = 5.0
"""Time that an idle connection is kept. Servers close theirs after 5 seconds or more."""

MAXIMUM_IDLE = 100
"""Maximum number of idle connections to one origin."""

MAXIMUM_HEAD_BYTES = 65_536
"""Maximum size of the header fields of a response, of its trailers, and of everything else that is
not the body, such as one line without an end: the parser gathers it in quadratic time."""

MAXIMUM_INTERIM = 100
"""Maximum number of interim responses (1xx) before a response."""

BUFFER_BYTES = 262_144
"""Size of the received body from which no more is read until the caller has taken it."""

_FORBIDDEN = (b"\r", b"\n", b"\0")
_FRAMES = {b"content-length", b"transfer-encoding"}
_HEAD_END = b"\r\n\r\n"

Origin = tuple[str, str, int]
"""The scheme, the host and the port of a URL."""

Timeouts = Mapping[str, float | None]
"""Seconds to `connect`, and to `read` a part of a response; None for no limit."""


class _Opened(Protocol):
    async def aclose(self) -> None: ...


Opened = TypeVar("Opened", bound=_Opened)


async def open_isolated(opening: Coroutine[Any, Any, Opened]) -> Opened:
    """Open a connection in an empty context; also with a request, whose response is returned.

    A connection and its timers outlive the run that opened it, and have the context of the task
    that created them. The model library stores the run in that context, with all of its messages: a
    hundred idle connections would keep a hundred finished runs in memory.
    """
    task = asyncio.create_task(opening, context=Context())
    try:
        return await task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled() and task.exception() is None:
            # It was opened together with the cancel: only this code can close it.
            await task.result().aclose()
        raise


class StreamTransport(httpx2.AsyncBaseTransport):
    """The connections of one client.

    Args:
        ssl_context: context of connections to `https` URLs.
    """

    def __init__(self, ssl_context: ssl.SSLContext) -> None:
        self._ssl_context = ssl_context
        self._idle: dict[Origin, list[_Connection]] = {}
        self.open: set[_Connection] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the response as soon as its head is complete.

        Raises:
            httpx2.TransportError: the connection or the head of the response failed, or a
                timeout of the request has passed.
        """
        method = request.method
        url = request.url
        body = await request.aread()
        head = encode_head(method, url, request.headers.raw)
        timeouts = request.extensions.get("timeout", {})
        return await self.send(find_origin(url), head + body, timeouts, has_body=method != "HEAD")

    async def send(
        self, origin: Origin, data: bytes, timeouts: Timeouts, *, has_body: bool = True
    ) -> httpx2.Response:
        """Send the bytes of a request; see `handle_async_request`.

        Args:
            has_body: False if the response ends with its head, as a response to HEAD does.
        """
        gate = current_send_gate.get()
        while True:
            if gate is not None:
                await gate.wait()
            connection = self._take_idle(origin)
            if connection is None:
                connection = await open_isolated(self._connect(origin, timeouts.get("connect")))
            if gate is None or gate.is_open():
                break
            # A halt has begun meanwhile. After the wait the connection would be too old.
            connection.close()

        # Nothing awaits between the look at the gate and the write of the request.
        try:
            exchange = connection.send(data, timeouts.get("read"), has_body=has_body)
            await exchange.wait_for_head()
        except BaseException:
            connection.close()
            raise
        stream = _Body(self, connection, exchange)
        return httpx2.Response(exchange.status, headers=exchange.headers, stream=stream)

    async def aclose(self) -> None:
        for connection in [*self.open]:
            if connection.loop is asyncio.get_running_loop():
                connection.close()
            elif not connection.loop.is_closed():
                connection.loop.call_soon_threadsafe(connection.close)
        self.open.clear()

    def release(self, connection: _Connection) -> None:
        """Keep the connection of a response that was read to its end; close any other."""
        idle = self._idle.setdefault(connection.origin, [])
        for idle_connection in list(idle):
            if idle_connection.loop.is_closed():
                self.forget(idle_connection)

        if len(idle) < MAXIMUM_IDLE and connection.finish(KEEPALIVE_SECONDS):
            idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: _Connection) -> None:
        """Drop a connection that is closed."""
        self.open.discard(connection)
        idle = self._idle.get(connection.origin, [])
        if connection in idle:
            idle.remove(connection)

    def _take_idle(self, origin: Origin) -> _Connection | None:
        """Return an idle connection of the running loop: those of other loops cannot be used here.

        Agents call synchronous libraries in threads, which start further event loops.
        """
        loop = asyncio.get_running_loop()
        idle = self._idle.get(origin, [])
        # Loops in other threads may change the list meanwhile.
        for connection in reversed([*idle]):
            if connection.loop is loop:
                if connection.is_quiet:
                    idle.remove(connection)
                    return connection
                connection.close()
        return None

    async def _connect(self, origin: Origin, seconds: float | None) -> _Connection:
        scheme, host, port = origin
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, origin),
                    host,
                    port,
                    ssl=self._ssl_context if scheme == "https" else None,
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("the connection was not established in time") from error
        except OSError as error:
            raise httpx2.ConnectError(f"no connection: {type(error).__name__}") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection; it has an exchange from a request to the end of its response.

    Attributes:
        loop: the event loop to which it belongs.
    """

    def __init__(self, owner: StreamTransport, origin: Origin) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()
        self._owner = owner
        self._transport: asyncio.Transport
        self._exchange: _Exchange | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._arrivals = select.poll()

    @property
    def is_quiet(self) -> bool:
        """True if the idle connection is open and nothing has arrived on it.

        What the kernel has received by now, and the event loop has not read yet, would be the start
        of the next response.
        """
        return not (self._transport.is_closing() or self._arrivals.poll(0))

    def send(self, data: bytes, read_seconds: float | None, *, has_body: bool) -> _Exchange:
        """Send a request; see `StreamTransport.send`."""
        if self._transport.is_closing():
            raise httpx2.RemoteProtocolError("the connection ended before the request")
        self._cancel_expiry()
        self._exchange = _Exchange(self._transport, read_seconds, has_body=has_body)
        self._transport.write(data)
        return self._exchange

    def finish(self, seconds: float) -> bool:
        """End the exchange, and close the connection after a time, unless it is used before.

        Returns:
            False if the connection cannot take another request.
        """
        exchange = self._exchange
        if exchange is None or not exchange.is_taken or self._transport.is_closing():
            return False
        exchange.discard()
        self._exchange = None
        self._expiry = self.loop.call_later(seconds, self.close, context=Context())
        return True

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at once."""
        self._cancel_expiry()
        self._owner.forget(self)
        if self._exchange is not None:
            self._exchange.fail(httpx2.ReadError("the connection was closed"))
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._owner.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None or self._exchange.is_complete:
            # No request waits for this data.
            self.close()
        else:
            self._exchange.receive(data)

    def eof_received(self) -> None:
        if self._exchange is not None:
            self._exchange.end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_expiry()
        self._owner.forget(self)
        if self._exchange is not None:
            self._exchange.end(exc)
            self._exchange.discard()

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


class _Exchange:
    """One request and its response: all that a connection has of one caller.

    Attributes:
        status, headers: status and header fields of the response, once its head is complete.
        is_complete: True if the end of the response has arrived.
    """

    def __init__(
        self, transport: asyncio.Transport, read_seconds: float | None, *, has_body: bool
    ) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._has_body = has_body

        self._has_head = False
        self._keeps_alive = False
        self._is_paused = False
        self._error: Exception | None = None

        # The part of the body that the caller has not taken yet.
        self._body: list[bytes] = []
        self._body_bytes = 0

        self._head_bytes = 0
        # The bytes since the parser has last called back.
        self._unparsed_bytes = 0
        # The number of interim responses.
        self._interim = 0

        self._waiter: asyncio.Future[None] | None = None
        self._read_seconds = read_seconds
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_taken(self) -> bool:
        """True if the caller has all of the response, and the server keeps the connection."""
        is_over = self.is_complete and self._keeps_alive and self._error is None
        return is_over and not self._body and not self._is_paused

    # The caller

    async def wait_for_head(self) -> None:
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """Return the part of the body that has arrived; wait if there is none; b"" at the end."""
        while not self._body:
            if self.is_complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        body = self._body
        self._body = []
        self._body_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return body[0] if len(body) == 1 else b"".join(body)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        if self._read_seconds is not None:
            # A timer that is set is not moved: at its time it is set again for the rest. So a wait
            # for each of many small parts costs no timer.
            self._deadline = self._loop.time() + self._read_seconds
            if self._timer is None:
                self._timer = self._loop.call_later(
                    self._read_seconds, self._check_deadline, context=Context()
                )
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        remaining = self._deadline - self._loop.time()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._check_deadline)
        else:
            self.fail(httpx2.ReadTimeout("no data of the response in time"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The connection

    def receive(self, data: bytes) -> None:
        assert self._parser is not None
        self._unparsed_bytes += len(data)

        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse("the response is not valid HTTP")
            return

        if self._unparsed_bytes > MAXIMUM_HEAD_BYTES and not self.is_complete:
            self._refuse("a header line of the response is too long")
            return

        if self.is_complete and not self._has_body and not _HEAD_END.endswith(data[-4:]):
            # The start of a body where none may be; the parser reports no part of a chunk's size.
            self._keeps_alive = False

        if self._interim > MAXIMUM_INTERIM:
            self._refuse("the response has too many interim responses")
            return

        if not self.is_complete and self._body_bytes > BUFFER_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

        self._wake()

    def end(self, error: Exception | None) -> None:
        """Note that the connection has ended, with an error or by an end of the stream."""
        names = {name.lower() for name, _ in self.headers}
        if error is not None:
            self.fail(httpx2.ReadError(f"the connection failed: {type(error).__name__}"))
        elif self._error is None and self._has_head and not names & _FRAMES:
            # Without a length the connection ends with the body (RFC 9112, section 6.3).
            self.is_complete = True
            self._wake()
        else:
            self.fail(httpx2.RemoteProtocolError("the connection ended before the response"))

    def fail(self, error: Exception) -> None:
        """Let the caller get an error after the body that has arrived, unless that is complete."""
        self._error = self._error or error
        self._wake()

    def discard(self) -> None:
        """Release what outlives the response: a timer, and the parser, which refers to this."""
        self._parser = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, reason: str) -> None:
        self.fail(httpx2.RemoteProtocolError(reason))
        self._transport.abort()

    # The parser

    def on_message_begin(self) -> None:
        if self.is_complete:
            # No request waits for a second response.
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAXIMUM_HEAD_BYTES:
            raise httpx2.RemoteProtocolError("the header of the response is too large")
        if not self._has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._unparsed_bytes = 0
        if self.status >= 200:
            self._has_head = True
            self._keeps_alive = self._parser.should_keep_alive()
            self.is_complete = not self._has_body
        else:
            self.headers = []
            self._interim += 1

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self.is_complete:
            self._keeps_alive = False  # A body where none may be.
        else:
            self._body.append(body)
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        # An interim response (1xx) has an end as well.
        self.is_complete = self._has_head


class _Body(httpx2.AsyncByteStream):
    """The body of a response."""

    def __init__(
        self, owner: StreamTransport, connection: _Connection, exchange: _Exchange
    ) -> None:
        self._owner = owner
        self._connection: _Connection | None = connection
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None and (data := await self._exchange.read()):
            yield data

    async def aclose(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            self._owner.release(connection)


def find_origin(url: httpx2.URL) -> Origin:
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, url.raw_host.decode("ascii"), port


def encode_head(method: str, url: httpx2.URL, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of a request before its body.

    Raises:
        httpx2.LocalProtocolError: a header field has a line break; its text is not repeated.
    """
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), url.raw_path)]
    lines += [b"%b: %b" % field for field in fields]
    head = b"".join(lines)
    if any(characters in head for characters in _FORBIDDEN):
        raise httpx2.LocalProtocolError("a header field of the request has a line break")
    return b"\r\n".join([*lines, b"", b""])
