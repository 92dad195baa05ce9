"""One attempt to deliver an event: a request to a checked address, and what follows from it."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentctl import __version__
from agentctl.config.webhooks import Webhook
from agentctl.light_dataclass import dataclass
from agentctl.records.times import now, read_retry_after
from agentctl.webhooks.addresses import RefusedAddress, resolve_allowed
from agentctl.webhooks.signing import Signer

if TYPE_CHECKING:
    import httpx2

SCHEDULE: Sequence[float] = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds before each attempt; after the last one a delivery is dead (Standard Webhooks 1.0)."""

ATTEMPT_SECONDS = 15.0
"""Maximum time of an attempt."""

JITTER = 0.1
"""Part by which the time before an attempt varies, so that attempts do not come at once."""

LONGEST_WAIT = 86_400.0
"""Maximum seconds that a response can ask for with `Retry-After`."""

GONE = 410

_HAS_RETRY_AFTER = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt.

    Attributes:
        status: the HTTP status; None without a response.
        error: the failure for operators, without content of the response; None for success.
        retry_after: seconds that the response asks to wait.
    """

    status: int | None
    error: str | None
    retry_after: float = 0.0


class Receiver:
    """An endpoint with its keys and its connections. Belongs to one event loop."""

    def __init__(self, webhook: Webhook, signer: Signer) -> None:
        self.webhook = webhook
        self.signer = signer
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def send(self, event_id: str, body: bytes) -> Outcome:
        """Send an event once, within `ATTEMPT_SECONDS`. It raises no error of the network."""
        import httpx2

        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                return await self._send(event_id, body)
        except (TimeoutError, httpx2.TimeoutException):
            return Outcome(None, f"no response within {ATTEMPT_SECONDS:g} seconds")
        except RefusedAddress as refused:
            return Outcome(None, str(refused))
        except httpx2.HTTPError as error:
            return Outcome(None, _describe(error))
        except (OSError, ValueError):
            return Outcome(None, "the server cannot be reached")

    async def _send(self, event_id: str, body: bytes) -> Outcome:
        import httpx2

        url = urlsplit(self.webhook.url)
        host = url.hostname or ""
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await resolve_allowed(host, port, allow_private=self.webhook.allow_private)
        headers = {
            "Host": url.netloc,
            "Content-Type": "application/json",
            "User-Agent": f"agentctl/{__version__}",
            "Accept-Encoding": "identity",
            **self.signer.build_headers(event_id, now() // 1_000_000, body),
        }
        for address in addresses:
            literal = f"[{address}]" if ":" in address else address
            target = url._replace(netloc=f"{literal}:{port}").geturl()
            # The certificate is verified for the name, although the request is for the address.
            names = {"sni_hostname": host}
            request = self._open_client().build_request(
                "POST", target, content=body, headers=headers, extensions=names
            )
            try:
                return await self._read(request)
            except httpx2.ConnectError:
                if address == addresses[-1]:
                    raise
        raise AssertionError("unreachable: there is an address")

    async def _read(self, request: httpx2.Request) -> Outcome:
        import httpx2

        response = await self._open_client().send(request, stream=True)
        try:
            # To its end, if that is near, so that the connection is kept. The status is known.
            async for _ in response.aiter_raw():
                pass
        except httpx2.ReadError:
            pass
        finally:
            await response.aclose()
        status = response.status_code
        if 200 <= status < 300:
            return Outcome(status, None)
        wait = 0.0
        if status in _HAS_RETRY_AFTER:
            wait = min(read_retry_after(response.headers) or 0.0, LONGEST_WAIT)
        text = f"the server responds with {status}"
        if 300 <= status < 400:
            text += ": redirects are not followed"
        return Outcome(status, text, wait)

    def _open_client(self) -> httpx2.AsyncClient:
        import httpx2

        if self._client is None:
            # A separate client for each endpoint: connections to one address are shared, and their
            # certificate was verified for one name. SSL_CERT_FILE counts, but no proxy, which would
            # resolve the name again.
            import httpcore2

            from agentctl.webhooks.receiving import BoundedBackend

            context = httpx2.create_ssl_context()
            transport = httpx2.AsyncHTTPTransport(verify=context, trust_env=False)
            # The only way to bound the bytes that are read: the transport has no argument for it.
            transport._pool = httpcore2.AsyncConnectionPool(
                ssl_context=context,
                max_connections=None,
                max_keepalive_connections=4,
                keepalive_expiry=5.0,
                network_backend=BoundedBackend(),
            )
            self._client = httpx2.AsyncClient(
                transport=transport,
                trust_env=False,
                follow_redirects=False,
                timeout=ATTEMPT_SECONDS,
            )
        return self._client


def plan_next(attempts: int, outcome: Outcome) -> float | None:
    """Return the seconds until the next attempt of a failed delivery; None if it is dead.

    Args:
        attempts: number of attempts so far.
    """
    if attempts >= len(SCHEDULE):
        return None
    varied = SCHEDULE[attempts] * random.uniform(1 - JITTER, 1 + JITTER)
    return max(varied, outcome.retry_after)


def _describe(error: Exception) -> str:
    cause: BaseException = error
    while (earlier := cause.__cause__ or cause.__context__) is not None:
        cause = earlier
    if isinstance(cause, ssl.SSLError):
        return "the certificate of the server is not valid"
    return "the server cannot be reached, or closed the connection"
