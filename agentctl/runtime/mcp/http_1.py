"""The HTTP client for version 1 of the `mcp` library.

Version 1 ends the whole connection if one request fails, and lets a call without a usable response
wait for its time limit. This client responds to such a call with an error of the protocol.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
import orjson

from agentctl.runtime.mcp.http import FORGOTTEN, McpHttpClient, is_stream
from agentctl.runtime.mcp.library import SESSION_TERMINATED, parse_message, types
from agentctl.runtime.models.response_limits import UnusableResponse

_EVENT_ID = re.compile(rb"[\r\n]id:")
_NO_RESPONSE = "its response is no message of the protocol"


class FirstHttpClient(McpHttpClient):
    """A client for one connection to an MCP server."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; a failed one gets an error with its id, or 202 if it has no id."""
        response = await super().send(request, **options)
        if request.method != "POST" or response.status_code == httpx2.codes.NOT_FOUND:
            return response
        request_id = orjson.loads(request.content).get("id")
        if response.is_success:
            if request_id is None:
                return response
            if is_stream(response):
                stream = cast(httpx2.AsyncByteStream, response.stream)
                response.stream = _AnsweredEvents(stream, request_id, self)
                return response
            if _is_message(response.content):
                return response
        await response.aclose()
        if request_id is None:
            return httpx2.Response(httpx2.codes.ACCEPTED, request=request)
        if response.is_redirect:
            self.problem = "its redirect was not followed"
        error = build_error_body(request_id, self.problem or _NO_RESPONSE)
        headers = {"Content-Type": "application/json"}
        return httpx2.Response(httpx2.codes.OK, content=error, headers=headers, request=request)


class _AnsweredEvents(httpx2.AsyncByteStream):
    """The events of a response, with an error at the end of a stream that cannot be resumed.

    The library stops to read at the response to the request, so it reads this error only if there
    is no other.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, request_id: int | str, client: McpHttpClient
    ) -> None:
        self._stream = stream
        self._request_id = request_id
        self._client = client

    async def __aiter__(self) -> AsyncIterator[bytes]:
        can_resume, end = False, b"\n"
        try:
            async for chunk in self._stream:
                can_resume = can_resume or _EVENT_ID.search(end + chunk) is not None
                # The field may be cut between two chunks.
                end = (end + chunk[-3:])[-3:]
                yield chunk
        except UnusableResponse:
            self._client.problem = "its response is too large or compressed"
            can_resume = False
        except httpx2.TransportError:
            self._client.problem = "the connection broke"
        if not can_resume:
            error = build_error_body(self._request_id, self._client.problem or _NO_RESPONSE)
            yield b"\n\nevent: message\ndata: " + error + b"\n\n"

    async def aclose(self) -> None:
        await self._stream.aclose()


def build_error_body(request_id: int | str, text: str) -> bytes:
    """Return the JSON of the error that responds to a request."""
    code = SESSION_TERMINATED if text == FORGOTTEN else types.INTERNAL_ERROR
    error = {"code": code, "message": text}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})


def _is_message(content: bytes) -> bool:
    try:
        parse_message(content)
    except ValueError:
        return False
    return True
