"""The HTTP client of the transport for streamable HTTP servers, with the bounds of its responses.

The transport is that of the `mcp` library. It ends the whole connection, with the calls of all
runs, if one request fails. This client gives it a response with status 503 instead, and limits each
body (decision 42). The transport follows redirects within the origin of the URL only, so a
server cannot direct its requests to another address (SSRF).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

import httpx2

from agentctl.records.proxies import find_proxy_variable
from agentctl.records.strict import has_too_many_values
from agentctl.runtime.mcp.calls import CONNECT_SECONDS, current_call
from agentctl.runtime.models.provider import IsolatedClient, UnusableResponse

_CLOSE_SECONDS = 2.0
"""Maximum time of the request that ends a session."""

_MAXIMUM_CONNECTIONS = 1_000
_SESSION_HEADER = "mcp-session-id"
_FORGOTTEN = "it has forgotten the session"

_UNUSABLE = "its response is too large or compressed"
_BROKEN = "the connection broke"

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The empty lines that end an event, with each end of a line that the format allows."""
_HTTP_REASONS = {
    401: "it rejected the credentials (HTTP 401)",
    403: "it denied access (HTTP 403)",
    404: "there is no MCP server at this URL (HTTP 404)",
}


class McpHttpClient(IsolatedClient):
    """A client for one connection to an MCP server.

    Args:
        headers: header fields of each request.
        message_bytes: maximum size of a body or event.
        on_end: called with a reason when the server cannot be reached.
        url: the URL of the server; None for any.

    Attributes:
        problem: the reason of the last failed request; None after a success.
    """

    propagation = "mcp"

    def __init__(
        self,
        headers: Mapping[str, str],
        message_bytes: int,
        on_end: Callable[[str], None],
        url: str | None = None,
    ) -> None:
        super().__init__(
            message_bytes,
            url=url,
            headers=dict(headers),
            # Streams may be silent for long; each call has its own time limit.
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            limits=httpx2.Limits(
                max_connections=_MAXIMUM_CONNECTIONS, max_keepalive_connections=20
            ),
        )
        # Instead of the limits for models: a stream of a server may last for days.
        self.event_hooks = {"response": [_build_limit_hook(message_bytes)]}
        self.problem: str | None = None
        self._on_end = on_end

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; a failure of the connection is a response with status 503.

        A body that is not an event stream is read completely. A response that cannot be used, see
        `UnusableResponse`, is one with status 502.
        """
        try:
            return await self._send_checked(request, **options)

        except UnusableResponse:
            self.problem = _UNUSABLE
            return httpx2.Response(httpx2.codes.BAD_GATEWAY, request=request)

        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            self.problem = "it does not accept connections"
            self._on_end(self.problem)

        except httpx2.ProxyError:
            proxy = find_proxy_variable(str(request.url))
            self.problem = f"the proxy of {proxy} accepts no connection, or cannot reach it"
            self._on_end(self.problem)

        # The server could be reached: only this request has failed, and the session stays.
        except (httpx2.TransportError, httpx2.DecodingError, TimeoutError):
            self.problem = _BROKEN

        return httpx2.Response(httpx2.codes.SERVICE_UNAVAILABLE, request=request)

    async def _send_checked(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        seconds = _CLOSE_SECONDS if request.method == "DELETE" else None
        async with asyncio.timeout(seconds):
            response = await super().send(request, **options)
            if not _is_stream(response) and has_too_many_values(await response.aread()):
                raise UnusableResponse("the body has too many values")

        self._note_status(request, response)
        return response

    def _note_status(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Set `problem` by the status of a response, and mark the call of a forgotten session."""
        status = response.status_code
        if status < httpx2.codes.BAD_REQUEST:
            self.problem = None
            return

        self.problem = _HTTP_REASONS.get(status, f"it answered with HTTP {status}")
        if request.method != "POST" or _SESSION_HEADER not in request.headers:
            return

        # Some servers answer 400 to an unknown session; the protocol has 404.
        is_unknown_session = status == httpx2.codes.NOT_FOUND or (
            status == httpx2.codes.BAD_REQUEST and b"session" in response.content.lower()
        )
        if is_unknown_session:
            self.problem = _FORGOTTEN
            # The call was not executed, and can be repeated in a new session.
            if (call := current_call.get()) is not None:
                call.session_lost = True


def _is_stream(response: httpx2.Response) -> bool:
    """Return True for a stream of events."""
    return bool(response.headers.get("content-type", "").startswith("text/event-stream"))


def _build_limit_hook(limit: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook that refuses compressed responses, and bounds the body or each event."""

    async def hook(response: httpx2.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise UnusableResponse("the response is compressed, which was not requested")

        stream = cast(httpx2.AsyncByteStream, response.stream)
        limited_stream = _LimitedEvents if _is_stream(response) else _LimitedBody
        response.stream = limited_stream(stream, limit)

    return hook


class _LimitedBody(httpx2.AsyncByteStream):
    """A body of at most `limit` bytes; `UnusableResponse` is raised beyond them."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > self._limit:
                raise UnusableResponse("the body is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _LimitedEvents(_LimitedBody):
    """A stream of events that may last for ever, of bounded size and number of values each."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event = bytearray()
        async for chunk in self._stream:
            end = max(map(chunk.rfind, _EVENT_ENDS))
            event += chunk if end < 0 else chunk[:end]
            if len(event) > 2 * self._limit:
                raise UnusableResponse("an event is too large")
            if end >= 0:
                # Once for each event: the library parses it when its end arrives.
                if has_too_many_values(bytes(event)):
                    raise UnusableResponse("an event has too many values")
                event[:] = chunk[end:]
            yield chunk
