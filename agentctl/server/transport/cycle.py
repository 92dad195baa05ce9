"""One request and its answer, between the protocol and the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from agentctl.errors import AgentctlError, InternalError, TooLarge
from agentctl.records.ids import new_id
from agentctl.server.answers import error_response
from agentctl.server.authentication import add_common_headers

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent

__all__ = ["BodyRequestCycle", "RequestCycle", "ResponseTransport", "error_response_bytes"]

MAXIMUM_DRAINED_BYTES = 65_536
"""A body of so many bytes at most is read to its end, so that the connection can be kept, even
when nothing of it was wanted.
"""


_JOINED_BYTES = 16_384
"""Up to so many bytes, to copy a body behind its head costs less than to send it apart."""

_CONTROLS = bytes({*range(32), 127} - {9})
"""What stands in no header field (RFC 9110 5.5)."""


class ResponseTransport:
    """The transport as an answer uses it: to close it is for the protocol, which may have to let
    the client read the answer first; and a head goes out with what comes behind it, which saves
    every answer a call of the kernel.
    """

    __slots__ = ("_close", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close: Callable[[], None] | None = close
        self._head = b""
        self.is_closing = transport.is_closing

    def hold(self, head: bytes) -> None:
        """Keep the head of an answer until the first piece of its body is written."""
        self._head = head

    def write(self, data: bytes) -> None:
        """Write, behind the head if one is held."""
        head, self._head = self._head, b""
        if not head:
            self._transport.write(data)
        elif len(data) < _JOINED_BYTES:
            self._transport.write(b"".join((head, data)))
        else:
            self._transport.writelines((head, data))

    def close(self) -> None:
        """Have the protocol close it, once all is written."""
        if self._head:
            self.write(b"")
        if self._close is not None:
            self._close()

    def let_go(self) -> None:
        """Forget the protocol, which is over, so that it is freed at once."""
        self._close = None


class RequestCycle(RequestResponseCycle):
    """uvicorn's, that fails in our shape, and writes the head of an answer at once."""

    length = 0
    """Of the body, as it was announced; `CHUNKED`: it was not."""

    @property
    def unfinished(self) -> bool:
        """Whether the request is still to be answered to its end."""
        return not (self.response_complete or self.disconnected)

    @property
    def streaming(self) -> bool:
        """Whether an answer without an announced end is under way."""
        return self.unfinished and bool(self.chunked_encoding)

    def leave(self) -> None:
        """Tell the application that the client is gone; what it still says goes nowhere."""
        self.disconnected = True
        self.message_event.set()

    def send(self, message: ASGISendEvent) -> Coroutine[Any, Any, None]:
        return super().send(message) if self.response_started else self._begin(message)

    async def _begin(self, message: ASGISendEvent) -> None:
        """Send the head of an answer. Whatever is not everyday is left to uvicorn, which looks at
        each field by itself.

        Raises:
            RuntimeError: a field holds a control character.
        """
        start = cast("HTTPResponseStartEvent", message)
        fields = [*self.default_headers, *start.get("headers", ())]
        known = dict(fields)
        length = known.get(b"content-length")
        if length is None or self.disconnected or not self._can_send_joined(known):
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
            raise RuntimeError("a header field holds a control character")
        outlet = cast("ResponseTransport", self.transport)
        outlet.hold(head + b"\r\n\r\n")
        if self.scope["method"] == "HEAD":
            outlet.write(b"")

    def _can_send_joined(self, known: Mapping[bytes, bytes]) -> bool:
        own = b"connection" in known or b"transfer-encoding" in known
        return not (own or self.access_log or self.flow.write_paused)

    async def send_500_response(self) -> None:
        """Answer what no layer above has: it was cancelled."""
        answer = error_response(InternalError())
        headers = [*add_common_headers(answer.raw_headers, new_id()), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send(
            {"type": "http.response.body", "body": bytes(answer.body), "more_body": False}
        )


class BodyRequestCycle(RequestCycle):
    """For a request with a body: its connection ends where reading on is not worth it."""

    def send(self, message: ASGISendEvent) -> Coroutine[Any, Any, None]:
        if not self.response_started and self._is_last(message):
            self.keep_alive = False
        return super().send(message)

    def _is_last(self, message: ASGISendEvent) -> bool:
        """Whether the body was too large, or too much of it is still to come, or the client waits
        to be told to go on (RFC 9110 10.1.1) and will not be.
        """
        if message.get("status") == TooLarge.status:
            return True
        waits = self.waiting_for_100_continue
        return self.more_body and (waits or not 0 <= self.length <= MAXIMUM_DRAINED_BYTES)


def error_response_bytes(error: AgentctlError, request_id: str) -> bytes:
    """A refusal as it goes over the wire, behind which the connection is closed."""
    answer = error_response(error)
    fields = add_common_headers(answer.raw_headers, request_id)
    lines = [name + b": " + value + b"\r\n" for name, value in fields]
    head = b"".join([STATUS_LINE[error.status], *lines, b"connection: close\r\n\r\n"])
    return head + bytes(answer.body)
