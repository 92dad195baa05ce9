"""The state of an application, the calls that endpoints receive, and the responses to them.

Responses are ASGI applications: documents, event streams and errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentctl import errors
from agentctl.auth.oidc import OidcClient
from agentctl.auth.principal import Principal
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Settings
from agentctl.interface.requests import StreamEvent
from agentctl.interface.responses import JSON
from agentctl.records.document import Document
from agentctl.runs.states import SHUTTING_DOWN
from agentctl.server.content import parse_json_content, read_content, read_media_type
from agentctl.server.sign_in_links import SignInLinks
from agentctl.service.service import Service, ServiceOperations
from agentctl.telemetry.log import RequestObserver

_FIXED_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_DEFAULT_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

T = TypeVar("T")

COMMENT_SECONDS = 15.0
"""Seconds without an event until a keep-alive comment is sent (docs/contract.md "Runs")."""

_JSON = b"application/json"

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
"""An entity tag (RFC 9110 8.8.3); group 1 is its text."""

_ETAG = b"etag"

RESPONSE_BYTES = 268_435_456
"""Maximum number of bytes of large responses that one process sends at the same time."""

LARGE_BYTES = 262_144
"""Bytes from which a response is large. It counts then, and is sent in parts of this size."""

CALLER_KEY = "agentctl.caller"
"""Key of the `Caller` in the ASGI scope."""

USER_ROUTE_KEY = "agentctl.user_route"
"""Key of the method and the path template of a route of a user, in the ASGI scope."""

_ANONYMOUS = Principal(subject=None)


class ResponseBudget:
    """The bytes of large responses of one process, which stay in memory until clients read them.

    One caller can use half of them, so that the other callers still get large responses.
    """

    def __init__(self) -> None:
        self._used = 0
        self._used_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, owner: str, size: int) -> Iterator[None]:
        """Count a response while the block sends it.

        A response that is larger than the limit is sent alone.

        Raises:
            Unavailable: too many bytes are under way.
        """
        if _exceeds(self._used_by[owner], size, RESPONSE_BYTES // 2) or _exceeds(
            self._used, size, RESPONSE_BYTES
        ):
            raise errors.Unavailable(
                "Too many large responses are under way", hint="read them first, then try again"
            )

        self._used += size
        self._used_by[owner] += size
        try:
            yield
        finally:
            self._used -= size
            self._used_by[owner] -= size
            if not self._used_by[owner]:
                del self._used_by[owner]


def _exceeds(used: int, size: int, limit: int) -> bool:
    """Return True if a response does not fit next to those that are being sent."""
    return used > 0 and used + size > limit


class FollowedRuns:
    """The streams of events that callers of one process follow.

    The streams of new runs are not counted: `limits.concurrent_runs` bounds them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, owner: str) -> Iterator[None]:
        """Count a stream while the block sends it.

        Raises:
            TooManyRequests: the caller follows too many streams.
        """
        if self._counts[owner] >= self._limit:
            raise errors.TooManyRequests(
                f"This caller follows {self._limit} event streams already",
                hint="close one of them, or ask the operator to raise limits.followed_runs",
            )

        self._counts[owner] += 1
        try:
            yield
        finally:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]


@dataclass(slots=True)
class AppState:
    """State of one application."""

    settings: Settings

    build_openapi_document: Callable[[], bytes]
    """Returns the document as JSON without a base path."""

    service: Service | None = None
    """The local backend of the operations; None while the application is not running."""

    stopped: bool = False
    """True after the application was running."""

    verifier: Verifier | None = None
    """Turns an Authorization header into a principal; None while not running."""

    request_observers: Sequence[RequestObserver] = ()
    """Callables that receive every finished request."""

    response_budget: ResponseBudget = field(default_factory=ResponseBudget)
    """Bounds the bytes of large responses."""

    followed_runs: FollowedRuns = field(init=False)
    """Bounds the streams of each caller."""

    oidc_client: OidcClient | None = field(init=False)
    """Signs users of the console in; None without a provider."""

    sign_in_links: SignInLinks = field(default_factory=SignInLinks)
    """The links of `agentctl console` that have not been opened yet."""

    def __post_init__(self) -> None:
        self.followed_runs = FollowedRuns(self.settings.limits.followed_runs)
        console = self.settings.console
        self.oidc_client = OidcClient(console) if console.oidc_issuer else None

    def require_running(self) -> Service:
        """Return the service.

        Raises:
            Unavailable: no lifespan runs this application.
        """
        if self.service is not None:
            return self.service

        if self.stopped:
            raise errors.Unavailable(SHUTTING_DOWN)
        raise errors.Unavailable(
            "The application is not running: use `async with agentctl.server.running(app):`"
            " in the lifespan of the host application"
        )

    @property
    def running_service(self) -> Service:
        """The service; `require_running` raises if there is none."""
        return self.require_running()


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: a principal, or the reason why there is none."""

    app_state: AppState

    request_id: str
    """A new UUIDv7, for `X-Request-ID` and the log."""

    principal: Principal | None

    owner: str
    """The name under which its requests, responses and streams count; `""` without a principal."""

    failure: errors.Unauthenticated | errors.Unavailable | None = None
    """If `principal` is None: the credential is missing or not valid, or cannot be verified now.

    The policy decides if the request needs one.
    """

    def count_request(self) -> None:
        """Count a request, before its work; RateLimited if the caller has sent too many."""
        if self.principal is not None:
            self.app_state.running_service.hosting.request_limit.take(self.owner)


class Call(Request):
    """A request with its caller, and the operations that the caller can use.

    Its body is bounded and its JSON is strict, for all that read it: operations and faces.
    """

    @property
    def caller(self) -> Caller:
        """The caller, whom `AuthenticationMiddleware` has identified."""
        caller: Caller = self.scope[CALLER_KEY]
        return caller

    async def body(self) -> bytes:
        """Return the bytes of the body. It can be read once: a stream does not keep it in memory.

        Raises:
            TooLarge: the announced length or the received bytes exceed `limits.body_bytes`.
            ClientDisconnect: the client disconnected before the end of the body.
        """
        return await read_content(self, self.caller.app_state.settings.limits.body_bytes)

    async def json(self) -> Any:
        """Return the value of a JSON body, which can be read once.

        Raises:
            UnsupportedMediaType: another content type, or a content encoding.
            TooLarge: more than `limits.body_bytes`, or than `MAXIMUM_VALUES` values.
            BadRequest: not JSON, with a member twice or NaN, or several content types.
        """
        if read_media_type(self) != JSON:
            raise errors.UnsupportedMediaType(f"The body must be {JSON}")
        return parse_json_content(await self.body())

    @cached_property
    def operations(self) -> ServiceOperations:
        """The operations as the caller; without a principal, as a caller without scopes."""
        caller = self.caller
        hosting = caller.app_state.running_service.hosting
        return ServiceOperations(hosting, caller.principal or _ANONYMOUS, caller.request_id)


class BytesResponse(Response):
    """A complete response in two ASGI messages, cheaper than Starlette's `Response`.

    Args:
        content_type: of the body; None for a response without a body (204).
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
            fields += [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        for name, value in (headers or {}).items():
            fields.append((name.lower().encode("ascii"), value.encode("latin-1", "replace")))
        self.raw_headers = fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_head(self, send)
        await send({"type": "http.response.body", "body": self.body})


class LargeResponse(BytesResponse):
    """A response that is sent in parts, as fast as its client reads them.

    Its bytes count in `AppState.response_budget` until the last part is sent; the error of the
    budget is raised before the first part.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope[CALLER_KEY]
        with caller.app_state.response_budget.reserve(caller.owner, len(self.body)):
            await _send_head(self, send)
            for start in range(0, len(self.body), LARGE_BYTES):
                await _send_part(send, bytes(self.body[start : start + LARGE_BYTES]))
            await send({"type": "http.response.body", "body": b""})


def document_response(
    document: Document[Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> BytesResponse:
    """Return the response with a document, which is sent in parts if it is large."""
    kind = LargeResponse if len(document.raw) > LARGE_BYTES else BytesResponse
    return kind(document.raw, status, headers=headers)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> BytesResponse:
    """Return the response with a value as JSON."""
    return document_response(Document(orjson.dumps(value)), status, headers)


def no_content_response() -> BytesResponse:
    """Return a 204."""
    return BytesResponse(b"", 204, None)


def error_response(error: errors.AgentctlError) -> BytesResponse:
    """Return the error body (docs/contract.md "Errors") with the header fields of the error."""
    return BytesResponse(orjson.dumps(error.body()), error.status, headers=error.headers())


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def cancelling_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block if the client disconnects before its end.

    Raises:
        ClientDisconnect: the client has disconnected, and the block has ended.
    """
    task = asyncio.current_task()
    assert task is not None

    # Like `asyncio.timeout`, this cancels the task that runs the block: the block needs no separate
    # task.
    watch = asyncio.ensure_future(_wait_for_disconnect(receive))
    is_working = True

    def cancel_block(watch: asyncio.Future[None]) -> None:
        # The block may have ended in the same pass of the event loop: the caller continues then.
        if is_working and not watch.cancelled():
            task.cancel()

    watch.add_done_callback(cancel_block)

    try:
        yield
    except asyncio.CancelledError:
        has_disconnected = watch.done() and not watch.cancelled()
        # Another cancel, such as a stop of the server, must not become a disconnect.
        if has_disconnected and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        is_working = False
        watch.cancel()


async def wait_for_first_events(receive: Receive, events: AsyncGenerator[list[T]]) -> list[T]:
    """Return the first events of a run, so that a refused run gets an HTTP error status.

    An empty first portion is returned as well: the events may be long in coming.

    Raises:
        ClientDisconnect: the client disconnected before them; the generator is closed.
        AgentctlError: the run was refused.
    """
    try:
        async with cancelling_on_disconnect(receive):
            first = await anext(events, None)
    except BaseException:
        await events.aclose()
        raise
    if first is None:
        raise errors.InternalError
    return first


async def _cancel_and_wait(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
        encode: returns the bytes of a portion, also of an empty portion at the end of the stream;
            None for portions of `StreamEvent`.
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
                if self.first:
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
        """Send the later events, and comments while there are none, until the client leaves."""
        time = asyncio.get_running_loop().time
        self._sent_at = time()

        # One task sends all portions: a task for each would cost more.
        sending = asyncio.ensure_future(self._send_rest(send))
        tasks = cast("set[asyncio.Future[Any]]", {sending, watch})

        try:
            while not (sending.done() or watch.done()):
                seconds = self._sent_at + COMMENT_SECONDS - time()
                if seconds <= 0 and not self._is_writing:
                    await _send_part(send, b": waiting\n\n")
                    self._sent_at = time()
                    continue

                if seconds <= 0:
                    # A write waits for a client that does not read: it needs no comment.
                    seconds = COMMENT_SECONDS
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

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
        body = self.encode(portion)
        if body:
            # A comment must not come in between: the write may wait for the client.
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
    """The tags in `If-None-Match`, without the marks of weak tags."""

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

    known_tags = KnownTags(headers)
    if known_tags and tag.decode("ascii").removeprefix("W/")[1:-1] in known_tags:
        response = BytesResponse(b"", 304, None)
        response.raw_headers.append((_ETAG, tag))
    return response


def add_common_headers(
    fields: Iterable[tuple[bytes, bytes]], request_id: str
) -> list[tuple[bytes, bytes]]:
    """Add the id of the request, and the header fields that every response has."""
    headers = [*fields, (b"x-request-id", request_id.encode("ascii")), *_FIXED_HEADERS]
    names = dict(headers)
    return headers + [field for field in _DEFAULT_HEADERS if field[0] not in names]
