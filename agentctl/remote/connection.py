"""The HTTP connection to one server: it sends requests and returns bytes or raises errors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import quote, urlencode

from agentctl import errors
from agentctl.records.document import Document
from agentctl.records.routes import ROUTES
from agentctl.remote import failures
from agentctl.remote.address import Address

if TYPE_CHECKING:
    import httpx2

Record = TypeVar("Record", covariant=True)
Shape = Literal["object", "array"]

_BRACKETS: dict[Shape, tuple[bytes, bytes]] = {"object": (b"{", b"}"), "array": (b"[", b"]")}
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class ReceivedDocument(Document[Record]):
    """A document from a server, parsed on demand; its JSON may be malformed."""

    @property
    def value(self) -> Record:
        """The parsed record.

        Raises:
            errors.Unavailable: the bytes are not JSON.
        """
        import orjson

        try:
            return cast(Record, orjson.loads(self.raw))
        except orjson.JSONDecodeError:
            raise errors.Unavailable("The response of the server is not valid JSON") from None


def has_shape(raw: bytes, shape: Shape) -> bool:
    """Return True if the first and last bytes are those of a JSON object or array."""
    first, last = _BRACKETS[shape]
    trimmed = raw.strip(_SPACE) if raw[:1].isspace() or raw[-1:].isspace() else raw
    return trimmed.startswith(first) and trimmed.endswith(last)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds: for a connection, for a response, for the next bytes of a stream."""

    connect: float = 5.0
    read: float = 30.0
    stream: float = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request.

    Attributes:
        method: the HTTP method.
        path: the quoted path below the prefix of the address (see `build_path`).
        query: names and values, in order.
        body: the JSON body, or None.
        headers: additional headers, names in lower case.
        extra_wait: seconds to add to the read timeout; None waits without a limit.
        accepted_status: a status from 400 that has a record instead of an error body.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: dict[str, Any] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    extra_wait: float | None = 0.0
    accepted_status: int | None = None


def build_path(operation: str, **ids: str) -> str:
    """Build the path of an operation with percent-quoted ids (RFC 3986 3.3).

    The ids `.` and `..` are quoted too, because clients and proxies remove dot segments.
    """
    segments = ROUTES[operation].template.split("/")
    return "/".join(
        _quote_segment(ids[segment[1:-1]]) if segment.startswith("{") else segment
        for segment in segments
    )


class Connection:
    """An HTTP client for one address. It follows no redirects, so the token stays there."""

    def __init__(self, address: Address, token: str | None, timeouts: Timeouts) -> None:
        self.address = address
        self._token = token
        self._timeouts = timeouts
        self._client: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"Connection({self.address.base!r})"

    async def open(self) -> None:
        """Create the client; it connects with the first request."""
        self._client = _create_client(self.address, self._token)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def fetch(self, request: Request, shape: Shape) -> bytes:
        """Send a request and return the JSON bytes of the response.

        Raises:
            errors.AgentctlError: the error of the response; or the server cannot be reached, or
                the response is not JSON of this shape.
        """
        response = await self._request(request)
        if _media_type(response) != "application/json" or not has_shape(response.content, shape):
            raise failures.build_unexpected_response_error(self.address, response)
        return response.content

    async def send(self, request: Request) -> None:
        """Send a request whose response has no body (204); see `fetch`."""
        await self._request(request)

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an event stream and yield its chunks; an error response raises before that."""
        outgoing = self._build_request(request, "text/event-stream", self._timeouts.stream)
        response = await self._sent(outgoing, stream=True)
        try:
            if response.status_code != 200 or _media_type(response) != "text/event-stream":
                await self._read_to_end(response)
                self._refuse_unless_ok(response)
                raise failures.build_unexpected_response_error(self.address, response)
            yield self._read_chunks(response)
        finally:
            await response.aclose()

    async def _request(self, request: Request) -> httpx2.Response:
        wait = request.extra_wait
        timeout = None if wait is None else self._timeouts.read + wait
        outgoing = self._build_request(request, "application/json", timeout)
        response = await self._sent(outgoing, stream=False)
        if response.status_code != request.accepted_status or failures.has_error_body(response):
            self._refuse_unless_ok(response)
        return response

    def _build_request(
        self, request: Request, accept: str, timeout: float | None
    ) -> httpx2.Request:
        import httpx2

        headers = {"accept": accept, **dict(request.headers)}
        if request.body is not None:
            headers["content-type"] = "application/json"
        query = f"?{_encode_query(request.query)}" if request.query else ""
        return self._opened_client().build_request(
            request.method,
            self.address.base + request.path + query,
            headers=headers,
            content=None if request.body is None else _encode_json(request.body),
            timeout=httpx2.Timeout(timeout, connect=self._timeouts.connect),
        )

    async def _sent(self, outgoing: httpx2.Request, *, stream: bool) -> httpx2.Response:
        import httpx2

        try:
            return await self._opened_client().send(outgoing, stream=stream)
        except httpx2.HTTPError as error:
            raise failures.build_connection_error(self.address, error) from error

    async def _read_chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        import httpx2

        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except httpx2.HTTPError as error:
            raise failures.build_connection_error(self.address, error) from error

    async def _read_to_end(self, response: httpx2.Response) -> None:
        import httpx2

        try:
            await response.aread()
        except httpx2.HTTPError as error:
            raise failures.build_connection_error(self.address, error) from error

    def _refuse_unless_ok(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            with_token = self._token is not None
            raise failures.build_response_error(self.address, response, with_token=with_token)
        if not response.is_success:
            raise failures.build_unexpected_response_error(self.address, response)

    def _opened_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            raise RuntimeError("used outside of its 'async with'")
        return self._client


def _create_client(address: Address, token: str | None) -> httpx2.AsyncClient:
    import ssl

    import httpx2

    import agentctl

    headers = {"user-agent": f"agentctl/{agentctl.__version__}"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        return httpx2.AsyncClient(
            headers=headers,
            follow_redirects=False,
            # Load certificates for https only: it takes about 20 ms.
            verify=True if address.encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            # Never use a proxy for this machine.
            trust_env=not address.loopback,
        )
    except (ValueError, ImportError, OSError, httpx2.InvalidURL):
        raise errors.UsageError(
            "The environment names a proxy or certificates that cannot be used",
            hint="check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
        ) from None


def _media_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _quote_segment(segment: str) -> str:
    if segment in (".", ".."):
        return segment.replace(".", "%2E")
    return quote(_encode_utf8(segment), safe="")


def _encode_query(query: tuple[tuple[str, str], ...]) -> str:
    return urlencode([(name, _encode_utf8(value)) for name, value in query], quote_via=quote)


def _encode_utf8(text: str) -> bytes:
    """Encode as UTF-8, lone surrogates included: the server rejects those."""
    return text.encode("utf-8", "surrogatepass")


def _encode_json(body: dict[str, Any]) -> bytes:
    # The standard library escapes lone surrogates, so that the server can reject them.
    return json.dumps(body, separators=(",", ":")).encode()
