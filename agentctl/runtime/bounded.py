"""A bound on what a provider may send without an end, since no layer above has one.

Events of a stream are taken apart as they arrive, and what is in them is counted there; but an
event that never ends, or a refusal without an end, would be gathered in memory for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import httpx2

__all__ = ["AnswerTooLarge", "bounded"]

_ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class AnswerTooLarge(httpx2.RemoteProtocolError):
    """A provider sent more in one piece than a run may hold."""


def bounded(limit: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook for responses: one event, or a body that is no event stream, has at most `limit`
    bytes; reading more raises AnswerTooLarge.
    """

    async def hook(response: httpx2.Response) -> None:
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        stream = cast(httpx2.AsyncByteStream, response.stream)
        response.stream = _Bounded(stream, limit, _ENDS_OF_EVENTS if streamed else ())

    return hook


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, ends: tuple[bytes, ...]) -> None:
        self._stream = stream
        self._limit = limit
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            after = max((chunk.rfind(end) for end in self._ends), default=-1)
            size = len(chunk) - after if after >= 0 else size + len(chunk)
            if size > self._limit:
                raise AnswerTooLarge("more than a run may hold came in one piece")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
