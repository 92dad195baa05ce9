"""The HTTP client of deliveries, which reads only the beginning of a response.

The module loads the HTTP packages: it is imported with the first endpoint.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpcore2
import httpx2

MAXIMUM_RESPONSE = 16_384
"""Bytes of a response that are read, with its header fields and interim responses (1xx).

None of its body is stored.
"""

_STEP_BYTES = 2_048
"""Bytes that are parsed at once.

A response can have one chunk, or one interim response, for a few bytes, and each takes the parser
some 100 microseconds.
"""


class _BoundedBackend(httpcore2.AsyncNetworkBackend):
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
        self._left_bytes = MAXIMUM_RESPONSE

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._left_bytes <= 0:
            raise httpcore2.ReadError("the response is too large")
        data = await self._stream.read(min(max_bytes, _STEP_BYTES), timeout)
        self._left_bytes -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # The next request of a connection that is kept.
        self._left_bytes = MAXIMUM_RESPONSE
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


def open_client(seconds: float) -> httpx2.AsyncClient:
    """Open a client whose requests end after `seconds`, and whose responses are bounded.

    Each endpoint has a client: connections to one address are shared, and their certificate was
    verified for one name. `SSL_CERT_FILE` counts, but no proxy does, which would resolve the name
    again.
    """
    context = httpx2.create_ssl_context()
    transport = httpx2.AsyncHTTPTransport(verify=context, trust_env=False)

    # The only way to bound the bytes that are read: the transport has no argument for it.
    transport._pool = httpcore2.AsyncConnectionPool(
        ssl_context=context,
        max_connections=None,
        max_keepalive_connections=4,
        keepalive_expiry=5.0,
        network_backend=_BoundedBackend(),
    )
    return httpx2.AsyncClient(
        transport=transport, trust_env=False, follow_redirects=False, timeout=seconds
    )
