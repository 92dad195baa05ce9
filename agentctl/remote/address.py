"""The URL of a server: parse it, and check where a token may be sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from agentctl import errors
from agentctl.records.hosts import is_loopback_host

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]")
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL of a server; `prefix` is the path under which the server is mounted."""

    origin: str
    """Scheme, host and port (RFC 6454 4): `http://127.0.0.1:7777`.

    A token belongs to one origin and is sent to no other.
    """

    prefix: str
    encrypted: bool

    loopback: bool
    """True for `localhost` and loopback addresses."""

    @property
    def base(self) -> str:
        """The URL to which paths are appended."""
        return self.origin + self.prefix


def parse_address(url: str) -> Address:
    """Parse the URL of a server.

    Raises:
        errors.UsageError: it is not an http or https URL, or it has a user name or password, a
            query or a fragment.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid_url("it cannot be parsed") from None

    if parts.scheme not in _DEFAULT_PORTS:
        cause = "it does not start with http:// or https://"
        if "://" not in url and _HOST.match(url):
            raise _invalid_url(cause, hint=f"write http://{url}, or https://{url}")
        raise _invalid_url(cause)
    if "@" in parts.netloc:
        raise _invalid_url(
            "it has a user name or password",
            hint="pass the token with --token-file or AGENTCTL_TOKEN",
        )
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _invalid_url("it has a query or a fragment")
    if not _PATH.fullmatch(parts.path) or {".", ".."} & set(parts.path.split("/")):
        raise _invalid_url("its path has characters that are not allowed in a path")

    host = _parse_host(parts)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise _invalid_url("its port is not a number from 1 to 65535")

    shown_port = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return Address(
        origin=f"{parts.scheme}://{host}{shown_port}",
        prefix=parts.path.rstrip("/"),
        encrypted=parts.scheme == "https",
        loopback=host.endswith(".localhost") or is_loopback_host(host.strip("[]")),
    )


def check_credential(address: Address, token: str, *, allow_insecure: bool) -> None:
    """Reject a token that would be sent in plain text or that does not fit into a header.

    Raises:
        errors.UsageError: plain http to another machine, unless `allow_insecure`; or a token with
            white space, control or non-ASCII characters (RFC 6750 2.1).
    """
    if not _TOKEN.fullmatch(token):
        hint = "a token is one line of ASCII without white space: check its file or variable"
        if token.lower().startswith("bearer "):
            hint = "leave out the word Bearer: agentctl adds it"
        raise errors.UsageError(
            "The token has characters that are not allowed in a token", hint=hint
        )
    check_transport(address, allow_insecure=allow_insecure)


def check_transport(address: Address, *, allow_insecure: bool) -> None:
    """Reject a server to which no token may be sent; see `check_credential`."""
    if not (address.encrypted or address.loopback or allow_insecure):
        raise errors.UsageError(
            "A token is not sent over plain http to another machine",
            cause=f"{address.origin} is not encrypted: others in the network could read the token",
            hint="use https://, or --insecure-http if you trust the network",
        )


def _parse_host(parts: SplitResult) -> str:
    name = parts.hostname or ""
    if not name:
        raise _invalid_url("it has no host")
    if not name.isascii():
        # IDNA 2003 and 2008 encode some letters differently: the token could reach another host.
        raise _invalid_url("its host name is not ASCII", hint="write it in the xn-- form")
    host = f"[{name}]" if ":" in name else name
    if not _HOST.fullmatch(host) or ".." in host:
        raise _invalid_url("its host name is not valid")
    return host


def _invalid_url(
    cause: str, hint: str = "write it like http://127.0.0.1:7777 or https://example.com/prefix"
) -> errors.UsageError:
    return errors.UsageError("The URL of the server is not valid", cause=cause, hint=hint)
