"""One request and its answer, between the protocol and the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from agentctl.errors import AgentctlError, InternalFailure, TooLarge
from agentctl.records.ids import new_id
from agentctl.server.answers import failure
from agentctl.server.authentication import dressed
from agentctl.server.heads import CHUNKED

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

__all__ = ["Cycle", "Outlet", "whole_answer"]

KEPT_BYTES = 65_536
"""A body of so many bytes at most is read to its end, so that the connection can be kept, even
when nothing of it was wanted.
"""


class Outlet:
    """The transport as an answer uses it: to close it is for the protocol, which may have to let
    the client read the answer first.
    """

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class Cycle(RequestResponseCycle):
    """uvicorn's, that closes where reading on is not worth it, and fails in our shape.

    Attributes:
        length: of the body, as it was announced; `CHUNKED`: it was not.
    """

    length = 0

    @property
    def answering(self) -> bool:
        """Whether the request is still to be answered to its end."""
        return not (self.response_complete or self.disconnected)

    @property
    def streaming(self) -> bool:
        """Whether an answer without an announced end is under way."""
        return self.answering and bool(self.chunked_encoding)

    def leave(self) -> None:
        """Tell the application that the client is gone; what it still says goes nowhere."""
        self.disconnected = True
        self.message_event.set()

    def send(self, message: ASGISendEvent) -> Coroutine[Any, Any, None]:
        if not self.response_started and (self.more_body or message.get("status") == 413):
            self.keep_alive = self.keep_alive and not self._is_last(message)
        return super().send(message)

    def _is_last(self, message: ASGISendEvent) -> bool:
        """Whether the connection ends with this answer: too much of the body is still to come, or
        the client waits to be asked for it (RFC 9110 10.1.1).
        """
        if message.get("status") == TooLarge.status or self.waiting_for_100_continue:
            return True
        return self.length is CHUNKED or self.length > KEPT_BYTES

    async def send_500_response(self) -> None:
        """Answer what no layer above has: it was cancelled."""
        answer = failure(InternalFailure())
        headers = [*dressed(answer.raw_headers, new_id()), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send(
            {"type": "http.response.body", "body": bytes(answer.body), "more_body": False}
        )


def whole_answer(error: AgentctlError) -> bytes:
    """A refusal as it goes over the wire, behind which the connection is closed."""
    answer = failure(error)
    fields = dressed(answer.raw_headers, new_id())
    lines = [name + b": " + value + b"\r\n" for name, value in fields]
    head = b"".join([STATUS_LINE[error.status], *lines, b"connection: close\r\n\r\n"])
    return head + bytes(answer.body)
