"""The addresses that a webhook may be sent to: the protection against SSRF.

Without it, a URL could send requests of the server to services that only its network reaches
(server-side request forgery). A name is resolved once for an attempt, its addresses are checked,
and the connection is made to a checked address: a second lookup could have another answer
(docs/security-cases.md).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address

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

_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
            "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
            "2001::/23", "2001:db8::/32", "3fff::/20",
        ),
    )
)  # fmt: skip
"""The special-purpose addresses of IANA (RFC 6890). Python's `is_global` differs by version."""

_NEVER = "is not an address of a receiver"


class RefusedAddress(Exception):
    """The name has no address, or one that is not allowed. The text is for operators."""


async def resolve_name(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, in the order of the system.

    Raises:
        OSError: the name cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found))


async def resolve_allowed(host: str, port: int, *, allow_private: bool) -> list[str]:
    """Return the addresses of a host, all of which are allowed.

    Raises:
        RefusedAddress: it has none, or one of them is not allowed.
    """
    try:
        texts = await resolve_name(host, port)
    except OSError:
        raise RefusedAddress("the name of the host cannot be resolved") from None
    if not texts:
        raise RefusedAddress("the name of the host has no address")
    for text in texts:
        if (problem := find_problem(ipaddress.ip_address(text), allow_private)) is not None:
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
    """Return the IPv4 address that an IPv6 address reaches; None for others."""
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
