"""Responses as ASGI applications: documents, event streams and errors."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentctl.errors import AgentctlError, InternalError
from agentctl.interface.requests import StreamEvent
from agentctl.records.document import Document
from agentctl.server.state import CALLER_KEY, LARGE_BYTES, Caller

COMMENT_SECONDS = 15.0
"""Seconds without an event until a keep-alive comment is sent (docs/contract.md "Runs")."""

T = TypeVar("T")

_JSON = b"application/json"

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')

_ETAG = b"etag"


class BytesResponse(Response):
    """A complete response in two ASGI messages, cheaper than Starlette's `Response`.

    Args:
        content_type: of the body; None for a response without one (204).
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


class LargeResponse(BytesResponse):
    """A response that is sent in parts, as fast as its client reads them.

    Its bytes count in `AppState.response_budget` until the last part is sent; the error of the
    budget is raised before the first one.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER_KEY]
        with caller.app_state.response_budget.reserve(caller.owner, len(self.body)):
            await _send_head(self, send)
            for start in range(0, len(self.body), LARGE_BYTES):
                part = self.body[start : start + LARGE_BYTES]
                await _send_part(send, bytes(part))
            await send({"type": "http.response.body", "body": b""})


def document_response(
    document: Document[Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> BytesResponse:
    kind = LargeResponse if len(document.raw) > LARGE_BYTES else BytesResponse
    return kind(document.raw, status, headers=headers)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> BytesResponse:
    return document_response(Document(orjson.dumps(value)), status, headers)


def no_content_response() -> BytesResponse:
    return BytesResponse(b"", 204, None)


def error_response(error: AgentctlError) -> BytesResponse:
    """Return the error body (docs/contract.md "Errors") with the header fields of the error."""
    return BytesResponse(orjson.dumps(error.body()), error.status, headers=error.headers())


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`; cancel it if the client disconnects first.

    Raises:
        ClientDisconnect: the client has disconnected, and `work` has ended.
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


async def wait_for_first_events(receive: Receive, events: AsyncGenerator[list[T]]) -> list[T]:
    """Return the first events of a run, so that a refused run gets an HTTP error status.

    Raises:
        ClientDisconnect: the client disconnected before them; the generator is closed.
        AgentctlError: the run was refused.
    """
    try:
        first = await cancel_on_disconnect(receive, anext(events, []))
    except BaseException:
        await events.aclose()
        raise
    if not first:
        raise InternalError
    return first


async def _cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStreamResponse(Response, Generic[T]):
    """Server-sent events of a run, until the last event or until the client disconnects.

    In both cases the iterator is closed; the effect on the run (`on_disconnect`) is decided in
    `agentctl.service`. Starlette's task group is not used, because its cancellation would also
    interrupt that close.

    Args:
        first: the events of a new run that were awaited before the status line; None to follow a
            run, which counts in `AppState.followed_runs`.
        rest: the later events, in portions. Each portion is sent at once, so a client that is
            late costs as many writes as portions, and between two of them other tasks run.
        encode: returns the bytes of a portion, or of an empty one at the end of the stream; None
            for portions of `StreamEvent`.
    """

    def __init__(
        self,
        first: list[T] | None,
        rest: AsyncGenerator[list[T]],
        encode: Callable[[list[T]], bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        ]
        self.encode: Callable[[list[T]], bytes] = encode or cast(Any, _format_events)
        self.first = first
        self.rest = rest
        self._sent_at = 0.0
        self._is_writing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER_KEY]
        watch = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            if self.first is not None:
                await _send_head(self, send)
                await self._send_portion(send, self.first)
                await self._follow(watch, send)
                return
            with caller.app_state.followed_runs.reserve(caller.owner):
                await _send_head(self, send)
                await self._follow(watch, send)
        finally:
            await _cancel_and_wait(watch)
            await self.rest.aclose()

    async def _follow(self, watch: asyncio.Future[None], send: Send) -> None:
        time = asyncio.get_running_loop().time
        self._sent_at = time()
        sending = asyncio.ensure_future(self._send_rest(send))
        waited = cast("set[asyncio.Future[Any]]", {sending, watch})
        try:
            while not (sending.done() or watch.done()):
                left = self._sent_at + COMMENT_SECONDS - time()
                if left <= 0 and not self._is_writing:
                    await _send_part(send, b": waiting\n\n")
                    self._sent_at = time()
                    continue
                seconds = left if left > 0 else COMMENT_SECONDS
                await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _cancel_and_wait(sending)

    async def _send_rest(self, send: Send) -> None:
        time = asyncio.get_running_loop().time
        async for portion in self.rest:
            await self._send_portion(send, portion)
            self._sent_at = time()
        await self._send_portion(send, [])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_portion(self, send: Send, portion: list[T]) -> None:
        if body := self.encode(portion):
            self._is_writing = True
            await _send_part(send, body)
            self._is_writing = False


async def _send_head(response: Response, send: Send) -> None:
    start = {"status": response.status_code, "headers": response.raw_headers}
    await send({"type": "http.response.start", **start})


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _format_events(events: list[StreamEvent]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\nid: %d\n\n" % (event.name.encode(), event.data, event.seq)
        for event in events
    )


class KnownTags:
    """The tags in `If-None-Match`, without the marks of weak ones."""

    __slots__ = ("_any", "_tags")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        text = ", ".join(
            value.decode("latin-1") for name, value in headers if name == b"if-none-match"
        )
        self._any = text.strip() == "*"
        self._tags = frozenset(_TAG.findall(text)) if text else frozenset[str]()

    def __contains__(self, tag: object) -> bool:
        return self._any or tag in self._tags

    def __bool__(self) -> bool:
        return self._any or bool(self._tags)


def versioned_response(response: BytesResponse, version: str) -> BytesResponse:
    """Return a response with the weak tag of a version that was found without its body."""
    response.raw_headers.append((_ETAG, f'W/"{version}"'.encode()))
    return response


def revalidate(response: Response, headers: Iterable[tuple[bytes, bytes]]) -> Response:
    """Return a successful response with a tag, or a 304 if the client has that tag.

    Rules: RFC 9110 8.8.3 and 13.1.2, docs/contract.md "Entity tags".

    A response that has a tag keeps it. Otherwise the tag is a hash of the body, and a response of
    more than `LARGE_BYTES` gets none: it is not worth the time to hash it.
    """
    if not isinstance(response, BytesResponse) or response.status_code != 200:
        return response
    tag = next((value for name, value in response.raw_headers if name == _ETAG), None)
    if tag is None:
        if len(response.body) > LARGE_BYTES:
            return response
        tag = b'"%b"' % hashlib.sha256(response.body).hexdigest()[:32].encode()
        response.raw_headers.append((_ETAG, tag))
    known = KnownTags(headers)
    if known and tag.decode("ascii").removeprefix("W/")[1:-1] in known:
        response = BytesResponse(b"", 304, None)
        response.raw_headers.append((_ETAG, tag))
    return response
