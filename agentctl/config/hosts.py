"""What a host to listen on means."""

from __future__ import annotations

__all__ = ["is_loopback", "split_address"]


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` can be reached from this machine only."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9464` or `[::1]:9464`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
