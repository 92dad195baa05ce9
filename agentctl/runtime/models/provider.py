"""Models of providers: connections, limits of their responses, and classes of their failures.

A provider can send data without end, compressed data, and events that take the library minutes of
work, while no other run continues (security cases M04 to M08). So a response is limited while its
bytes arrive; the conversation limits the text and the calls in it.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import Any, cast

import httpx2

from agentctl.records.proxies import (
    build_any_proxy_options,
    build_proxy_options,
    find_proxy_variable,
)
from agentctl.runtime.models.stream_transport import StreamTransport, open_isolated
from agentctl.runtime.tracing import HEADER, Propagation, find_traceparent
from agentctl.work.send_gate import SendGate, current_send_gate

MAXIMUM_EVENT_BYTES = 1_048_576
"""Maximum size of one event of a stream, or of an error body. Its processing is one step of the
event loop."""

MAXIMUM_EVENT_VALUES = 4_096
"""Maximum number of arrays and objects in one event: each takes the library some 50 µs."""

MAXIMUM_EVENT_LINES = 4_096
"""Maximum number of lines of one event; an event of a provider has one or two."""

_ENVELOPE_BYTES = 65_536
"""Allowance for everything except the text in one event, if runs are smaller than an event."""

_MINIMUM_EVENTS = 10_000
"""Number of events that every answer may have."""

_BYTES_OF_AN_EVENT = 64
"""An answer has at most one more event for each 64 bytes that a run may store: a quarter of a
million by default, which is more than the tokens of an answer."""

_BYTES_OF_AN_ENVELOPE = 512
"""A provider repeats the envelope of an answer, some 300 bytes, with each token."""

_EVENTS_OF_A_TURN = 32
"""Number of events after which other tasks of the event loop get their turn."""

_EVENT_END = re.compile(rb"(?>\r\n|\r|\n){2}")
_SEPARATOR_OVERLAP = 3
_DATA_LINE = re.compile(rb"(?:\A|(?<=[\r\n]))data: ?([^\r\n]*)")


class UnusableResponse(httpx2.RemoteProtocolError):
    """A response of a provider that is not read to its end: it is too large, or compressed."""


def limit_response(response: httpx2.Response, run_bytes: int) -> httpx2.Response:
    """Limit a response, and return it.

    Reading a response that exceeds a limit, or that is compressed, raises UnusableResponse.
    Requests ask for uncompressed data: a thousandth of a compressed body is enough to fill the
    memory.

    Args:
        run_bytes: maximum size of a run.
    """
    stream = cast(httpx2.AsyncByteStream, response.stream)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    refused = encoding not in {"", "identity"}
    streamed = response.is_success
    response.stream = _LimitedStream(stream, run_bytes, refused=refused, streamed=streamed)
    return response


def iterate_events(response: httpx2.Response) -> AsyncIterator[list[bytes]]:
    """Yield the events of a limited response, the events of one read together.

    An event includes its empty line; bytes after the last empty line are not an event.
    """
    return cast(_LimitedStream, response.stream).iterate_events()


class _LimitedStream(httpx2.AsyncByteStream):
    """The body of a response, in portions of complete events.

    Args:
        refused: True if the body must not be read.
        streamed: True if the body has events; otherwise it counts as one.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, run_bytes: int, *, refused: bool, streamed: bool
    ) -> None:
        self._stream = stream
        self._refused = refused
        self._streamed = streamed
        self._event_bytes = min(2 * run_bytes + _ENVELOPE_BYTES, MAXIMUM_EVENT_BYTES)
        self._events_left = _MINIMUM_EVENTS + run_bytes // _BYTES_OF_AN_EVENT
        self._bytes_left = 2 * run_bytes + _BYTES_OF_AN_ENVELOPE * self._events_left

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for events in self.iterate_events():
            yield b"".join(events)

    async def iterate_events(self) -> AsyncIterator[list[bytes]]:
        """Yield the complete events of each read, in portions; last the bytes after them."""
        if self._refused:
            raise UnusableResponse("the response is compressed, which was not requested")

        pending = bytearray()
        try:
            async for chunk in self._stream:
                self._bytes_left -= len(chunk)
                if self._bytes_left < 0:
                    raise UnusableResponse("the response is too large")

                searched = max(0, len(pending) - _SEPARATOR_OVERLAP)
                pending += chunk

                ends = _find_ends(pending, searched)
                start = 0
                for first in range(0, len(ends) if self._streamed else 0, _EVENTS_OF_A_TURN):
                    if first:
                        await asyncio.sleep(0)

                    events: list[bytes] = []
                    refusal: UnusableResponse | None = None

                    try:
                        for end in ends[first : first + _EVENTS_OF_A_TURN]:
                            event = bytes(pending[start:end])
                            self._check_event(event)
                            events.append(event)
                            start = end
                    except UnusableResponse as error:
                        refusal = error

                    if events:
                        yield events
                    if refusal is not None:
                        raise refusal

                del pending[:start]
                self._check_size(len(pending))
        except ssl.SSLError as error:
            raise _build_tls_failure() from error

        if pending:
            yield [bytes(pending)]

    def _check_event(self, event: bytes) -> None:
        self._events_left -= 1
        if self._events_left < 0:
            raise UnusableResponse("the response has too many events")
        self._check_size(len(event))
        if event.count(b"\n") + event.count(b"\r") > MAXIMUM_EVENT_LINES:
            raise UnusableResponse("an event of the provider has too many lines")
        if event.count(b"{") + event.count(b"[") > MAXIMUM_EVENT_VALUES:
            _check_values(b"\n".join(_DATA_LINE.findall(event)))

    def _check_size(self, size: int) -> None:
        if size > self._event_bytes:
            raise UnusableResponse("an event or an error of the provider is too large")

    async def aclose(self) -> None:
        await self._stream.aclose()


def _build_tls_failure() -> httpx2.ReadError:
    """Build the error of a TLS alert after the handshake, which httpx2 does not translate."""
    return httpx2.ReadError("the TLS connection failed")


def _find_ends(data: bytearray, start: int) -> list[int]:
    if b"\r" in data:
        return [match.end() for match in _EVENT_END.finditer(data, start)]
    ends: list[int] = []
    while (end := data.find(b"\n\n", start)) >= 0:
        start = end + 2
        ends.append(start)
    return ends


def _check_values(data: bytes) -> None:
    """Limit the number of arrays and objects in the JSON of an event.

    Braces and brackets in texts do not count, so the event is parsed.
    """
    try:
        nodes: list[Any] = [json.loads(data)]
    except (ValueError, RecursionError) as error:
        raise UnusableResponse("an event of the provider is not valid JSON") from error

    count = 0
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
        else:
            continue

        count += 1
        if count > MAXIMUM_EVENT_VALUES:
            raise UnusableResponse("an event of the provider has too many values")


CONNECT_SECONDS = 30.0
"""Connect timeout. It is long because a loop that starts a thousand runs at once is slow to see
that a connection is established."""

RUN_BYTES = 16_777_216
"""Size of an answer for a client without a configuration: the default of `limits.run_bytes`."""

READ_SECONDS = 300.0
"""Maximum time without data from a provider, before and during an answer."""


def build_http_client(
    run_bytes: int, transport: StreamTransport | None = None, *, url: str | None = None
) -> LimitedClient:
    """Build the client of a provider, with the bounds of an answer; it follows no redirect.

    Args:
        transport: None for the transport of httpx2.
        url: as in `LimitedClient`.

    Raises:
        InvalidConfiguration: the environment names a proxy that cannot be used.
    """
    # The transport for streams isolates its connections itself.
    client_class = IsolatedClient if transport is None else LimitedClient
    return client_class(
        run_bytes,
        timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        transport=transport,
        url=url,
    )


def build_stream_transport(url: str | None = None) -> StreamTransport | None:
    """Build the transport that costs less for each read of a stream.

    None if the environment names a proxy: the transport of httpx2 knows proxies.

    Args:
        url: the URL of the provider; None for any.
    """
    urls = ("http://elsewhere.invalid", "https://elsewhere.invalid") if url is None else (url,)
    if any(find_proxy_variable(checked_url) for checked_url in urls):
        return None
    return StreamTransport(_create_ssl_context())


def http_client() -> httpx2.AsyncClient:
    """Build an HTTP client for the model client of a library, such as `ChatOpenAI`.

    It costs less for each token than the client that the library builds, and an idle connection
    keeps nothing of a run alive. An answer has at most 16 MiB of text.
    """
    return build_http_client(RUN_BYTES, build_stream_transport())


class LimitedClient(httpx2.AsyncClient):
    """An HTTP client that limits the responses.

    All clients share one set of trusted certificate authorities, which takes a megabyte and 20 ms
    to load. So `verify` is not an argument.

    Args:
        run_bytes: maximum size of a run, and therefore of an answer (`ResponseLimits`).
        url: the URL of all requests, which selects the proxy; empty for a URL that only a library
            knows, None for any URL.
        options: other arguments of `httpx2.AsyncClient`.

    Raises:
        InvalidConfiguration: the environment names a proxy that cannot be used.
    """

    propagation: Propagation = "models"
    """The kind of system, for the `traceparent` of its requests."""

    def __init__(self, run_bytes: int, *, url: str | None = None, **options: Any) -> None:
        async def limit(response: httpx2.Response) -> None:
            limit_response(response, run_bytes)

        if options.get("transport") is None:
            options |= build_any_proxy_options() if url is None else build_proxy_options(url)
        hooks = {"response": [limit]}
        super().__init__(verify=_create_ssl_context(), event_hooks=hooks, **options)
        self.headers["Accept-Encoding"] = "identity"

    def build_request(self, *args: Any, **options: Any) -> httpx2.Request:
        request = super().build_request(*args, **options)
        traceparent = find_traceparent(self.propagation)
        if traceparent is not None:
            request.headers[HEADER] = traceparent
        return request


class _SendTrace:
    """Looks at the gate again when the connection is open and the request is about to be sent."""

    def __init__(self, gate: SendGate) -> None:
        self._gate = gate

    async def __call__(self, event: str, info: object) -> None:
        if event.endswith("send_request_headers.started"):
            await self._gate.wait()


class IsolatedClient(LimitedClient):
    """A `LimitedClient` with a transport of httpx2, also through a proxy.

    Its connections are opened in an empty context (`open_isolated`).
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        gate = current_send_gate.get()
        if gate is not None and self.propagation == "models":
            await gate.wait()
            request.extensions = {**request.extensions, "trace": _SendTrace(gate)}
        try:
            return await open_isolated(super().send(request, **options))
        except ssl.SSLError as error:
            raise _build_tls_failure() from error
        except httpx2.ConnectError as error:
            # The error does not show that the connection was to the proxy.
            proxy = find_proxy_variable(str(request.url))
            if proxy is None:
                raise
            raise httpx2.ProxyError(f"the proxy of {proxy} accepts no connection") from error


@cache
def _create_ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
