"""The HTTP connection to one server: it sends requests and returns bytes or raises errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast
from urllib.parse import quote, urlencode

import orjson

import agentctl
from agentctl import errors
from agentctl.interface.operations import ROUTES
from agentctl.records.document import Document
from agentctl.records.proxies import build_proxy_options
from agentctl.records.routes import INTERFACE_HEADER
from agentctl.records.value_types import find_mismatch
from agentctl.remote import failures
from agentctl.remote.address import Address

if TYPE_CHECKING:
    import httpx2

Record = TypeVar("Record", covariant=True)
Shape = Literal["object", "array"]

_LOGGER = logging.getLogger(__name__)

_BRACKETS: dict[Shape, tuple[bytes, bytes]] = {"object": (b"{", b"}"), "array": (b"[", b"]")}
_SPACE = b" \t\r\n"

MAXIMUM_DOCUMENT_BYTES = 268_435_456
"""Bytes of the largest document that is read. Lists have pages, so it is beyond any real one."""

HEAD_SECONDS = 1.0
"""Time from the read timeout until the head of a response must be complete.

A server that sends nothing has failed before.
"""

FIRST_PAUSE = 0.1
"""Seconds before the first retry of a request; the pause doubles with each retry."""

LONGEST_PAUSE = 2.0
"""Seconds before a retry at most."""

LONGEST_WAIT = 60.0
"""Seconds that a server can ask to wait before a request is repeated."""

MAXIMUM_PROBE_BYTES = 65_536
"""Bytes of the response from which a server is recognised."""


@dataclass(frozen=True, slots=True)
class ReceivedDocument(Document[Record]):
    """A document from a server, parsed on demand; its JSON may be malformed."""

    expected: Any = Any

    @property
    def value(self) -> Record:
        """The parsed record; InvalidResponse if the bytes are no such record."""
        try:
            record = orjson.loads(self.raw)
        except orjson.JSONDecodeError:
            raise failures.build_invalid_response("it is not valid JSON") from None
        place = find_mismatch(record, self.expected)
        if place is not None:
            where = f"{place} is" if place else "the whole document is"
            raise failures.build_invalid_response(f"{where} missing or of another type")
        return cast(Record, record)


def has_shape(raw: bytes, shape: Shape) -> bool:
    """Return True if a text begins and ends as a JSON object or array."""
    first, last = _BRACKETS[shape]
    trimmed = raw.strip(_SPACE) if raw[:1].isspace() or raw[-1:].isspace() else raw
    return trimmed.startswith(first) and trimmed.endswith(last)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds."""

    connect: float = 5.0
    """To open a connection."""

    read: float = 30.0
    """For the next bytes of a response.

    The wait of a cancel is added; a run in the foreground has no limit.
    """

    stream: float = 60.0
    """For the next bytes of a stream, comments included."""

    whole: float = 300.0
    """For all bytes of a body once it has begun, and for all bytes of one event.

    The limit applies however often a byte arrives. The head of a response has the time of `read`.
    """


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request."""

    method: str

    path: str
    """The quoted path below the prefix of the address (see `build_path`)."""

    query: tuple[tuple[str, str], ...] = ()
    body: dict[str, Any] | None = None

    form: tuple[tuple[str, str], ...] | None = None
    """The fields of a form as the body (`application/x-www-form-urlencoded`)."""

    content: AsyncIterable[bytes] | None = None
    """The bytes of the body, which are read again if the request is sent again."""

    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers, names in lower case."""

    extra_wait: float | None = 0.0
    """Seconds to add to the read timeout; None waits without a limit."""

    accepted_status: int | None = None
    """A status of 400 or more whose body is a record and no error."""

    may_have_no_events: bool = False
    """True if a record in place of an event stream means that there are no events."""

    is_repeatable: bool = False
    """True if a second request changes nothing more than the first one.

    That is a read, a replacement, or a change with an idempotency key.
    """


def build_path(operation: str, **ids: str) -> str:
    """Build the path of an operation with percent-quoted ids (RFC 3986 3.3).

    The ids `.` and `..` are quoted too, because clients and proxies remove dot segments.
    """
    segments = ROUTES[operation].template.split("/")
    return "/".join(
        _quote_segment(ids[segment[1:-1]]) if segment.startswith("{") else segment
        for segment in segments
    )


class TokenSource(Protocol):
    """A token that ends before the command does, and is renewed."""

    async def read(self) -> str:
        """Return the token for the next request."""

    async def renew(self, refused: str) -> str:
        """Return a new token in place of the token that the server refused.

        Raises:
            errors.AgentctlError: there is no other token.
        """


class Connection:
    """An HTTP client for one address. It follows no redirects, so the token stays there.

    Args:
        source: renews the token; None for a token that stays.
        retries: the number of times that a failed request is sent again, if that is safe.
    """

    def __init__(
        self,
        address: Address,
        token: str | None,
        timeouts: Timeouts,
        source: TokenSource | None = None,
        retries: int = 0,
    ) -> None:
        self.address = address
        self.retries = retries
        self._token = token
        self._timeouts = timeouts
        self._source = source
        self._client: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"Connection({self.address.base!r})"

    def open(self) -> None:
        """Create the client; it connects with the first request."""
        self._client = _create_client(self.address)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def fetch(self, request: Request, shape: Shape) -> bytes:
        """Send a request and return the JSON bytes of the response.

        Raises:
            errors.AgentctlError: the error of the response; or the server cannot be reached, or
                the response is not JSON of this shape, too large, or too slow.
        """
        response = await self._request(request)
        if _media_type(response) != "application/json" or not has_shape(response.content, shape):
            raise failures.build_unexpected_response_error(self.address, response)
        return response.content

    @contextlib.asynccontextmanager
    async def open_raw(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield its response, with any status and content type; see `fetch`."""
        wait = None if request.extra_wait is None else self._timeouts.read + request.extra_wait
        async with self._open(request, "*/*", wait) as response:
            if _is_encoded(response):
                raise failures.build_encoded_response_error()
            yield response

    def check_status(self, response: httpx2.Response, body: bytes) -> None:
        """Raise the error that the status, from 300, and the body of a raw response describe."""
        import httpx2

        headers = {**response.headers, "content-length": str(len(body))}
        self._refuse_unless_ok(
            httpx2.Response(
                response.status_code, headers=headers, content=body, request=response.request
            )
        )

    async def send(self, request: Request) -> None:
        """Send a request whose response has no body (204); see `fetch`."""
        await self._request(request)

    async def probe(self, path: str) -> bytes | None:
        """Return the JSON of a GET that succeeds with at most `MAXIMUM_PROBE_BYTES`, else None."""
        wait = self._timeouts.read
        body = bytearray()
        async with self._open(Request("GET", path), "application/json", wait) as response:
            if response.status_code != 200 or _media_type(response) != "application/json":
                return None

            async with self._deadline(min(wait, self._timeouts.whole)):
                async for chunk in self.read_chunks(response):
                    body += chunk
                    if len(body) > MAXIMUM_PROBE_BYTES:
                        return None

        return None if _is_encoded(response) else bytes(body)

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an event stream and yield its chunks; an error response raises before that."""
        wait = self._timeouts.stream
        async with self._open(request, "text/event-stream", wait) as response:
            if response.status_code != 200 or _media_type(response) != "text/event-stream":
                complete = await self._read_to_end(response)
                self._refuse_unless_ok(complete)
                if request.may_have_no_events and _media_type(response) == "application/json":
                    yield _yield_nothing()
                    return
                raise failures.build_unexpected_response_error(self.address, complete)

            if _is_encoded(response):
                raise failures.build_encoded_response_error()
            yield self.read_chunks(response)

    async def _request(self, request: Request) -> httpx2.Response:
        """Send a request, again after failures that allow it; return the complete response."""
        failure_count = 0
        while True:
            try:
                return await self._exchange(request)
            except (errors.Unavailable, errors.TooManyRequests) as failure:
                failure_count += 1
                await self.wait_to_repeat(failure, failure_count, is_safe=request.is_repeatable)

    async def wait_to_repeat(
        self,
        failure: errors.AgentctlError,
        failure_count: int,
        *,
        is_safe: bool,
        limit: int | None = None,
    ) -> None:
        """Wait before a failed request is sent again, or raise its failure.

        A server that refuses a request for its rate (429), or that cannot be reached, has executed
        nothing: such a request is always repeated.

        Args:
            failure_count: the number of failures so far.
            is_safe: the request may be repeated although it may have been executed.
            limit: the number of repeats, if it is not `retries`.
        """
        from agentctl.records.jitter import jitter

        requested_wait = failure.retry_after
        if requested_wait is None or requested_wait > LONGEST_WAIT:
            raise failure

        if failure_count > (self.retries if limit is None else limit):
            raise failure

        is_rate_limited = isinstance(failure, errors.TooManyRequests)
        has_executed_nothing = is_rate_limited or isinstance(failure, errors.NotConnected)
        if not is_safe and not has_executed_nothing:
            raise failure

        # Clients that one failure has interrupted do not return all at once.
        longest_pause = min(FIRST_PAUSE * 2 ** (failure_count - 1), LONGEST_PAUSE)
        pause = longest_pause * jitter(0.5, 1.0)
        await asyncio.sleep(max(pause, requested_wait) if is_rate_limited else pause)

    async def _exchange(self, request: Request) -> httpx2.Response:
        wait = None if request.extra_wait is None else self._timeouts.read + request.extra_wait
        async with self._open(request, "application/json", wait) as incoming:
            response = await self._read_to_end(incoming)
        if response.status_code != request.accepted_status or failures.has_error_body(response):
            self._refuse_unless_ok(response)
        return response

    @contextlib.asynccontextmanager
    async def _open(
        self, request: Request, accept: str, wait: float | None
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response without its body.

        Without a `wait` there is no limit for the next bytes, nor for the whole header.
        """
        if self._source is not None:
            self._token = await self._source.read()

        began = time.monotonic()
        response = await self._send(request, accept, wait)

        if response.status_code == 401 and self._source is not None and self._token is not None:
            # The server has executed nothing, so the same request may be sent again.
            await response.aclose()
            self._token = await self._source.renew(self._token)
            response = await self._send(request, accept, wait)

        _LOGGER.debug(
            "%s %s: %s after %.0f ms, request %s",
            response.request.method,
            response.request.url.raw_path.decode("ascii", "replace"),
            response.status_code,
            (time.monotonic() - began) * 1000,
            response.headers.get("x-request-id", "without an id"),
        )

        try:
            yield response
        finally:
            await response.aclose()

    async def _send(self, request: Request, accept: str, wait: float | None) -> httpx2.Response:
        import httpx2

        outgoing = self._build_request(request, accept, wait)
        try:
            async with self._deadline(None if wait is None else wait + self._timeouts.whole) as end:
                if wait is not None:
                    outgoing.extensions["trace"] = _build_trace(end, wait + HEAD_SECONDS)
                return await self._opened_client().send(outgoing, stream=True)
        except (httpx2.HTTPError, ssl.SSLError) as error:
            raise failures.build_connection_error(self.address, error) from error

    def _build_request(
        self, request: Request, accept: str, timeout: float | None
    ) -> httpx2.Request:
        import httpx2

        # A few compressed bytes can become gigabytes, so none are accepted.
        headers = {"accept": accept, "accept-encoding": "identity", **dict(request.headers)}

        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"

        content: bytes | AsyncIterable[bytes] | None = request.content
        if request.body is not None:
            headers["content-type"] = "application/json"
            # The standard library escapes lone surrogates, so that the server can reject them.
            content = json.dumps(request.body, separators=(",", ":")).encode()
        elif request.form is not None:
            headers["content-type"] = "application/x-www-form-urlencoded"
            content = _encode_query(request.form).encode()

        query = f"?{_encode_query(request.query)}" if request.query else ""
        return self._opened_client().build_request(
            request.method,
            self.address.base + request.path + query,
            headers=headers,
            content=content,
            timeout=httpx2.Timeout(timeout, connect=self._timeouts.connect),
        )

    async def read_chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        import httpx2

        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except (httpx2.HTTPError, ssl.SSLError) as error:
            raise failures.build_connection_error(self.address, error) from error

    async def _read_to_end(self, response: httpx2.Response) -> httpx2.Response:
        import httpx2

        body = bytearray()
        headers = {
            name: value
            for name, value in response.headers.items()
            if name not in ("content-encoding", "content-length", "transfer-encoding")
        }

        if not _is_encoded(response):
            async with self._deadline(self._timeouts.whole):
                async for chunk in self.read_chunks(response):
                    body += chunk
                    if len(body) > MAXIMUM_DOCUMENT_BYTES:
                        raise failures.build_invalid_response(
                            f"it is larger than {MAXIMUM_DOCUMENT_BYTES >> 20} MB",
                            hint="request less, for example with --limit",
                        )
        elif response.is_success:
            raise failures.build_encoded_response_error()

        return httpx2.Response(
            response.status_code, headers=headers, content=bytes(body), request=response.request
        )

    @contextlib.asynccontextmanager
    async def _deadline(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Bound the time of the block, however often bytes arrive."""
        try:
            async with asyncio.timeout(seconds) as end:
                yield end
        except TimeoutError:
            raise failures.build_slow_response_error(self.address) from None

    def _refuse_unless_ok(self, response: httpx2.Response) -> None:
        """Raise the error of a complete response, unless it is a success."""
        if response.status_code >= 400:
            with_token = self._token is not None
            raise failures.build_response_error(self.address, response, with_token=with_token)
        if not response.is_success:
            raise failures.build_unexpected_response_error(self.address, response)

    def _opened_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            raise RuntimeError("used outside of its 'async with'")
        return self._client


def _build_trace(end: asyncio.Timeout, seconds: float) -> Callable[[str, Any], Awaitable[None]]:
    """Return a callback that moves a deadline when the request was sent.

    Bytes that arrive, such as interim responses (1xx), do not extend it.
    """

    async def trace(event: str, _: Any) -> None:
        if event.endswith("send_request_body.complete"):
            end.reschedule(asyncio.get_running_loop().time() + seconds)

    return trace


def _create_client(address: Address) -> httpx2.AsyncClient:
    import httpx2

    headers = {
        "user-agent": f"agentctl/{agentctl.__version__}",
        INTERFACE_HEADER.lower(): "contract",
    }

    options = build_proxy_options(address.base)
    try:
        if address.encrypted:
            context = httpx2.create_ssl_context()
        else:
            # Without https no certificates are loaded, which takes about 20 ms.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    except (ValueError, OSError):
        raise errors.UsageError(
            "The environment names certificates that cannot be used",
            hint="check SSL_CERT_FILE and SSL_CERT_DIR",
        ) from None

    return httpx2.AsyncClient(headers=headers, follow_redirects=False, verify=context, **options)


async def _yield_nothing() -> AsyncIterator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


def _media_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _is_encoded(response: httpx2.Response) -> bool:
    encoding = str(response.headers.get("content-encoding", "")).strip().lower()
    return encoding not in ("", "identity")


def _quote_segment(segment: str) -> str:
    if segment in (".", ".."):
        return segment.replace(".", "%2E")
    return quote(_encode_utf8(segment), safe="")


def _encode_query(query: tuple[tuple[str, str], ...]) -> str:
    return urlencode([(name, _encode_utf8(value)) for name, value in query], quote_via=quote)


def _encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
