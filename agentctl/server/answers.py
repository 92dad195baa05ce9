"""What is sent: whole documents, streams of events, and failures, as ASGI applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import orjson
from fastapi.sse import format_sse_event
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from agentctl.errors import AgentctlError, InternalError
from agentctl.operations import StreamEvent
from agentctl.records.document import Document

__all__ = [
    "BytesResponse",
    "EventStreamResponse",
    "cancel_on_disconnect",
    "document_response",
    "error_response",
    "no_content_response",
    "wait_for_first_event",
]

COMMENT_SECONDS = 15.0
"""How long a stream may be silent before a comment is sent (contract.md 5)."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

_JSON = b"application/json"


class BytesResponse(Response):
    """A whole answer in two ASGI messages, without the work of a general response.

    Args:
        body: what is sent.
        status: HTTP status.
        content_type: of the body; None for an answer that has none (204).
        headers: further header fields.
    """

    def __init__(
        self,
        body: bytes,
        status: int = 200,
        content_type: bytes | None = _JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        fields: list[tuple[bytes, bytes]] = []
        if content_type is not None:
            fields.append((b"content-type", content_type))
            fields.append((b"content-length", b"%d" % len(body)))
        for name, value in (headers or {}).items():
            fields.append((name.lower().encode("ascii"), value.encode("latin-1", "replace")))
        self.raw_headers = fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_head(self, send)
        await send({"type": "http.response.body", "body": self.body})


def document_response(answer: Document[Any], status: int = 200) -> BytesResponse:
    """A document as it crossed the port: its bytes, untouched."""
    return BytesResponse(answer.raw, status)


def no_content_response() -> BytesResponse:
    """204: done, and nothing to say."""
    return BytesResponse(b"", 204, None)


def error_response(error: AgentctlError) -> BytesResponse:
    """The error body of spec.md "Errors" with the header fields of the failure."""
    return BytesResponse(orjson.dumps(error.body()), error.status, headers=error.headers())


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return once the client has gone away. To be called when its body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away first.

    Raises:
        ClientDisconnect: the client is gone, and `work` has ended.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _cancel_and_wait(task, watch)


async def wait_for_first_event(receive: Receive, events: AsyncIterator[StreamEvent]) -> StreamEvent:
    """The first event of a run, awaited before the status line: a refusal is an HTTP status.

    Raises:
        ClientDisconnect: the client went away before it; the iterator is closed.
        AgentctlError: the run was refused.
    """
    try:
        first = await cancel_on_disconnect(receive, _next_event(events))
    except BaseException:
        await _close_events(events)
        raise
    if first is None:
        raise InternalError
    return first


async def _cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStreamResponse(Response):
    """Server-sent events of a run, until their end or until the client goes away.

    Whatever ends it, the iterator is closed: what that means for the run (`on_disconnect`) is
    decided behind the port. It is sent by hand and not by Starlette's task group, whose
    cancellation would also interrupt that closing.

    Args:
        first: the event that was awaited before the status line; None where none was, because
            it may be long in coming.
        rest: the events behind it.
    """

    def __init__(self, first: StreamEvent | None, rest: AsyncIterator[StreamEvent]) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self.first = first
        self.rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await _send_head(self, send)
            if self.first is not None:
                await _send_part(send, _format_event(self.first))
            await self._follow(watch, send)
        finally:
            await _cancel_and_wait(watch)
            await _close_events(self.rest)

    async def _follow(self, watch: asyncio.Future[None], send: Send) -> None:
        upcoming: asyncio.Future[StreamEvent | None] | None = None
        try:
            while not watch.done():
                upcoming = upcoming or asyncio.ensure_future(_next_event(self.rest))
                await asyncio.wait(
                    cast("set[asyncio.Future[Any]]", {upcoming, watch}),
                    timeout=COMMENT_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not upcoming.done():
                    await _send_part(send, b": waiting\n\n")
                    continue
                event, upcoming = upcoming.result(), None
                if event is None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                await _send_part(send, _format_event(event))
        finally:
            if upcoming is not None:
                await _cancel_and_wait(upcoming)


async def _send_head(answer: Response, send: Send) -> None:
    """Send the status line and the header fields."""
    start = {"status": answer.status_code, "headers": answer.raw_headers}
    await send({"type": "http.response.start", **start})


async def _next_event(events: AsyncIterator[StreamEvent]) -> StreamEvent | None:
    return await anext(events, None)


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _format_event(event: StreamEvent) -> bytes:
    return format_sse_event(data_str=event.data.decode(), event=event.name, id=str(event.seq))


async def _close_events(events: AsyncIterator[StreamEvent]) -> None:
    """Close an iterator of events that may be a generator."""
    closing = cast("Callable[[], Awaitable[None]] | None", getattr(events, "aclose", None))
    if closing is not None:
        await closing()
