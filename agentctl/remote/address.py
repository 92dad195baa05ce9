"""Where a server is: reading, comparing and guarding its URL."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from agentctl import errors

__all__ = ["Address", "check_credential", "parse_address"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]")
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a server, taken apart.

    Attributes:
        origin: scheme, host and port (RFC 6454 4): `http://127.0.0.1:7777`. A credential belongs
            to an origin and goes to no other.
        prefix: path that the server is mounted under, without a slash at its end; mostly empty.
        encrypted: whether the scheme is https.
        loopback: whether the host is this machine by its very name.
    """

    origin: str
    prefix: str
    encrypted: bool
    loopback: bool

    @property
    def base(self) -> str:
        """The URL that paths are appended to."""
        return self.origin + self.prefix


def parse_address(url: str) -> Address:
    """Take the URL of a server apart.

    Raises:
        errors.UsageFailed: it is no http or https URL, or carries what a server's URL must not:
            a user name or password, a query, a fragment.
    """
    parts = _split_url(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise _invalid_url("it does not begin with http:// or https://")
    if "@" in parts.netloc:
        raise _invalid_url(
            "it holds a user name or password",
            hint="give the token by --token-file or AGENTCTL_TOKEN",
        )
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _invalid_url("it has a query or a fragment")
    if not _PATH.fullmatch(parts.path) or {".", ".."} & set(parts.path.split("/")):
        raise _invalid_url("its path holds characters that belong in no path")
    host = _parse_host(parts)
    return Address(
        origin=f"{parts.scheme}://{host}{_parse_port(parts)}",
        prefix=parts.path.rstrip("/"),
        encrypted=parts.scheme == "https",
        loopback=_is_loopback(host),
    )


def check_credential(address: Address, token: str, *, allow_insecure: bool) -> None:
    """Refuse to send `token` where it could be read on the way, or one that no header can carry.

    Raises:
        errors.UsageFailed: plain http to another machine, unless `allow_insecure`; or a token
            with white space, control or non-ASCII characters (RFC 6750 2.1).
    """
    if not _TOKEN.fullmatch(token):
        raise errors.UsageError(
            "The token holds characters that no token has",
            hint="it is one line of ASCII without white space: look at its file or variable",
        )
    if not (address.encrypted or address.loopback or allow_insecure):
        raise errors.UsageError(
            "A token is not sent over plain http to another machine",
            cause=f"{address.origin} is not encrypted: anyone on the way could read the token",
            hint="use https://, or --insecure-http when the network itself is trusted",
        )


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _invalid_url("it cannot be taken apart") from None


def _parse_host(parts: SplitResult) -> str:
    name = parts.hostname or ""
    if not name:
        raise _invalid_url("it names no host")
    if not name.isascii():
        # The two encodings of such names disagree on some letters: a token could go astray.
        raise _invalid_url("its host name is not in ASCII", hint="write it in its xn-- form")
    host = f"[{name}]" if ":" in name else name
    if not _HOST.fullmatch(host) or ".." in host:
        raise _invalid_url("its host name is not one")
    return host


def _parse_port(parts: SplitResult) -> str:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise _invalid_url("its port is not a number from 1 to 65535")
    return "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _invalid_url(
    cause: str, hint: str = "write it like http://127.0.0.1:7777 or https://example.com/prefix"
) -> errors.UsageError:
    return errors.UsageError("The URL is not that of a server", cause=cause, hint=hint)
