"""One request and its response, between the protocol and the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from agentctl.errors import AgentctlError, InternalError, TooLarge
from agentctl.records.ids import new_id
from agentctl.server.answers import error_response
from agentctl.server.authentication import add_common_headers

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent

MAXIMUM_DRAINED_BYTES = 65_536
"""An unwanted body up to this size is read to its end, so that the connection can be kept."""

_JOINED_BYTES = 16_384
"""Up to this size, a copy of the body to the head costs less than a second system call."""

_CONTROLS = bytes({*range(32), 127} - {9})
"""Characters that no header field can contain (RFC 9110 5.5)."""


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
        head, self._head = self._head, b""
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

    @property
    def unfinished(self) -> bool:
        """True until the response is complete or the client has disconnected."""
        return not (self.response_complete or self.disconnected)

    @property
    def streaming(self) -> bool:
        """True while a response without an announced length is sent."""
        return self.unfinished and bool(self.chunked_encoding)

    def disconnect(self) -> None:
        """Report to the application that the client has disconnected; drop what it still sends."""
        self.disconnected = True
        self.message_event.set()

    def send(self, message: ASGISendEvent) -> Coroutine[Any, Any, None]:
        return super().send(message) if self.response_started else self._send_head(message)

    async def _send_head(self, message: ASGISendEvent) -> None:
        """Send the head of a response.

        uvicorn builds the head in a loop over its fields. This method builds a usual head at once
        and leaves any other head to uvicorn.

        Raises:
            RuntimeError: a field contains a control character.
        """
        start = cast("HTTPResponseStartEvent", message)
        fields = [*self.default_headers, *start.get("headers", ())]
        by_name = dict(fields)
        length = by_name.get(b"content-length")
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
