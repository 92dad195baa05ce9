"""Connections to the receivers of webhooks, of which a bounded number of bytes is read."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore2

MAXIMUM_RESPONSE = 16_384
"""Bytes of a response that are read, with its header fields and interim responses (1xx). None of
its body is stored."""

_STEP_BYTES = 2_048
"""Bytes that are parsed at once: a response can have one chunk, or one interim response, for a few
bytes, and each takes the parser some 100 microseconds."""


class BoundedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections that fail after `MAXIMUM_RESPONSE` bytes since the last request."""

    def __init__(self) -> None:
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _BoundedStream(await self._backend.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _BoundedStream(await self._backend.connect_unix_socket(*args, **options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _BoundedStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = MAXIMUM_RESPONSE

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._left <= 0:
            raise httpcore2.ReadError("the response is too large")
        data = await self._stream.read(min(max_bytes, _STEP_BYTES), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._left = MAXIMUM_RESPONSE
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
