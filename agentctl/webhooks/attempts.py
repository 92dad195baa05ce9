"""One attempt to deliver an event: a request to a checked address, and what follows from it.

The check of addresses is the protection against SSRF (server-side request forgery). Without it, a
URL could send requests of the server to services that only its network reaches. A name is resolved
once for an attempt, its addresses are checked, and the connection is made to a checked address: a
second lookup could have another answer (docs/internals/security-cases.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentctl import __version__
from agentctl.config.webhooks import Webhook
from agentctl.records.jitter import jitter
from agentctl.records.times import now, read_retry_after
from agentctl.records.tls import describe_tls_failure
from agentctl.webhooks.signing import Signer

if TYPE_CHECKING:
    import httpx2


Address = IPv4Address | IPv6Address

METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"),
    )
)
"""Addresses of the services that give credentials to machines of cloud providers."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_6TO4 = ipaddress.ip_network("2002::/16")
_COMPATIBLE = ipaddress.ip_network("::/96")

_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")

_SPECIAL_RANGES = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
    "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
    "2001::/23", "2001:db8::/32", "3fff::/20",
)  # fmt: skip
"""The special-purpose addresses of IANA (RFC 6890). Python's `is_global` differs by version."""

_SPECIAL = tuple(map(ipaddress.ip_network, _SPECIAL_RANGES))

_NEVER = "is not an address of a receiver"


class RefusedAddress(Exception):
    """The name has no address, or one that is not allowed. The text is for operators."""


async def resolve_name(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, in the order of the system; OSError if it has none."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]).partition("%")[0] for *_, sockaddr in addresses))


async def resolve_allowed(host: str, port: int, *, allow_private: bool) -> list[str]:
    """Return the addresses of a host; RefusedAddress if it has none, or one that is not allowed."""
    try:
        texts = await resolve_name(host, port)
    except OSError:
        raise RefusedAddress("the name of the host cannot be resolved") from None
    if not texts:
        raise RefusedAddress("the name of the host has no address")

    for text in texts:
        problem = find_problem(ipaddress.ip_address(text), allow_private)
        if problem is not None:
            raise RefusedAddress(f"the address {text} {problem}")
    return texts


def find_problem(address: Address, allow_private: bool) -> str | None:
    """Return why an address is refused; None if it is allowed.

    An IPv4 address inside an IPv6 address (mapped, compatible, NAT64, 6to4) is judged itself.
    """
    inner = find_embedded(address)
    if inner is not None:
        return find_problem(inner, allow_private)
    if address in METADATA or address.is_unspecified or address.is_multicast:
        return _NEVER
    if address == ipaddress.ip_address("255.255.255.255"):
        return _NEVER
    if allow_private or is_public(address):
        return None
    return "is private, loopback or link-local: allow_private = true allows it"


def is_public(address: Address) -> bool:
    """Return True for an address that every machine on the Internet reaches."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    return not any(address in network for network in _SPECIAL)


def find_embedded(address: Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address reaches; None for any other address."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped

    number = int(address)
    if address in _NAT64:
        return IPv4Address(number & 0xFFFF_FFFF)
    if address in _6TO4:
        return IPv4Address((number >> 80) & 0xFFFF_FFFF)

    # ::1 is the loopback address, and :: is no address.
    if address in _COMPATIBLE and number > 1:
        return IPv4Address(number & 0xFFFF_FFFF)

    return None


SCHEDULE: Sequence[float] = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds before each attempt; after the last one a delivery is dead (Standard Webhooks 1.0)."""

ATTEMPT_SECONDS = 15.0
"""Maximum time of an attempt until the status and header fields of its response."""

BODY_SECONDS = 1.0
"""Maximum time for the body of a response."""

JITTER = 0.1
"""Part by which the time before an attempt varies, so that attempts do not come at once."""

LONGEST_WAIT = 86_400.0
"""Maximum seconds that a response can ask for with `Retry-After`."""

GONE = 410
"""The status with which an endpoint says that it wants no further events."""

_HAS_RETRY_AFTER = frozenset({429, 502, 503, 504})
"""The statuses whose `Retry-After` counts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt."""

    status: int | None
    """The HTTP status; None without a response."""

    error: str | None
    """The failure for operators, without content of the response; None for success."""

    retry_after: float = 0.0
    """Seconds that the response asks to wait."""


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
                response = await self._send(event_id, body)
        except (TimeoutError, httpx2.TimeoutException):
            return Outcome(None, f"no response within {ATTEMPT_SECONDS:g} seconds")
        except RefusedAddress as refused:
            return Outcome(None, str(refused))
        except (httpx2.HTTPError, ssl.SSLError) as error:
            return Outcome(None, _describe(error))
        except (OSError, ValueError):
            return Outcome(None, "the server cannot be reached")
        return await _read(response)

    async def _send(self, event_id: str, body: bytes) -> httpx2.Response:
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
            # The certificate is verified for the name, although the request goes to the address.
            extensions = {"sni_hostname": host}
            request = self._open_client().build_request(
                "POST", target, content=body, headers=headers, extensions=extensions
            )
            try:
                return await self._open_client().send(request, stream=True)
            except httpx2.ConnectError:
                # The host may listen on some of its addresses only.
                if address == addresses[-1]:
                    raise

        raise AssertionError("unreachable: there is an address")

    def _open_client(self) -> httpx2.AsyncClient:
        from agentctl.webhooks.bounded_client import open_client

        if self._client is None:
            self._client = open_client(ATTEMPT_SECONDS)
        return self._client


async def _read(response: httpx2.Response) -> Outcome:
    import httpx2

    # Read to the end, if that is near, so that the connection is kept. The status is known.
    with contextlib.suppress(TimeoutError, httpx2.HTTPError, OSError):
        async with asyncio.timeout(BODY_SECONDS), contextlib.aclosing(response):
            async for _ in response.aiter_raw():
                pass

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


def plan_next(attempts: int, outcome: Outcome) -> float | None:
    """Return the seconds until the next attempt of a failed delivery; None if it is dead.

    Args:
        attempts: number of attempts so far.
    """
    if attempts >= len(SCHEDULE):
        return None
    seconds = SCHEDULE[attempts] * jitter(1 - JITTER, 1 + JITTER)
    return max(seconds, outcome.retry_after)


def _describe(error: Exception) -> str:
    """Return the failure of a request for operators."""
    unreachable = "the server cannot be reached, or closed the connection"
    return describe_tls_failure(error) or unreachable
