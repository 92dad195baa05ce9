"""Hosts and addresses of servers."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address


def is_loopback_host(host: str) -> bool:
    """Return True if only this machine can reach a server that listens on `host`."""
    address = parse_ip_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def parse_ip_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that a host consists of; None if the host is a name."""
    import ipaddress

    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def split_address(address: str) -> tuple[str, int]:
    """Split `127.0.0.1:9464` or `[::1]:9464` into host and port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
