"""Refusals of requests that pages of web sites may have made, while authorization is off.

A browser reaches every server that its machine reaches, also one on loopback. A page of any site
can make it send requests: a form needs no permission of the server, and a name of the site that is
resolved to 127.0.0.1 (DNS rebinding) makes responses readable. So such an address accepts only
requests whose `Host` is a name of the server, and none that a page of another origin has made
(security cases T20 to T22). `same-site` counts as another origin: every program on a
loopback port is of the same site.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable, Mapping

from starlette.types import Scope

from agentctl.errors import CrossSiteRequest
from agentctl.records.hosts import is_loopback_host, parse_ip_address

_WRONG_HOST = (
    "The Host of the request is not accepted without authorization: call the server by a loopback"
    " name or address or by server.host, or enable authorization"
)
_WRONG_ORIGIN = (
    "A page of another origin has made the request, which is not accepted without authorization:"
    " add the origin to server.cors_origins, or enable authorization"
)


class OriginGuard:
    """The check of the Host and the origin of each request to one address.

    Args:
        host: the name or address that the server listens on. For all addresses of the machine, any
            IP address and the name of the machine are accepted: rebinding needs a name of the
            attacker.
        origins: web origins whose pages may call; `*` for all.
    """

    def __init__(self, host: str, origins: Iterable[str] = ()) -> None:
        self._listens_everywhere = _is_unspecified(host)
        name = socket.gethostname() if self._listens_everywhere else host
        self._name = _normalize(name.encode("ascii", "replace"))
        self._origins = frozenset(origin.encode() for origin in origins)
        self._is_accepted_host = functools.lru_cache(maxsize=64)(self._is_own_name)

    def check(self, scope: Scope) -> None:
        """Check the header of a request.

        The navigation of a browser to a URL of the server is accepted from any page: it changes
        nothing, and the page cannot read the response.

        Raises:
            CrossSiteRequest: the Host is not a name of the server, or a page of another origin has
                made the request.
        """
        fields = dict[bytes, bytes](scope["headers"])
        host = fields.get(b"host", b"")
        if not self._is_accepted_host(host):
            raise CrossSiteRequest(_WRONG_HOST)
        if b"*" in self._origins:
            return

        # All of them: a proxy may have added a field.
        origins = {value for name, value in scope["headers"] if name == b"origin"}
        if origins:
            hosts = {origin.partition(b"://")[2].lower() for origin in origins - self._origins}
            if hosts - {host.lower()}:
                raise CrossSiteRequest(_WRONG_ORIGIN)
            return

        # Browsers leave out Origin in some requests; they name the site in all of them.
        is_of_other_site = fields.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        if is_of_other_site and not _is_navigation(scope, fields):
            raise CrossSiteRequest(_WRONG_ORIGIN)

    def accepts(self, scope: Scope) -> bool:
        """Return True if `check` raises nothing."""
        try:
            self.check(scope)
        except CrossSiteRequest:
            return False
        return True

    def _is_own_name(self, host: bytes) -> bool:
        """Return True if a Host, with or without a port, is a name of the server."""
        # An IPv6 address has colons inside its brackets.
        if b":" in host and not host.endswith(b"]"):
            host = host.rpartition(b":")[0]

        name = _normalize(host)
        if name == self._name or name == "localhost" or name.endswith(".localhost"):
            return True
        if self._listens_everywhere:
            return parse_ip_address(name) is not None
        return is_loopback_host(name)


def _is_navigation(scope: Scope, fields: Mapping[bytes, bytes]) -> bool:
    """Return True if a user has followed a link, or entered the URL."""
    return (
        scope["method"] in ("GET", "HEAD")
        and fields.get(b"sec-fetch-mode") == b"navigate"
        and fields.get(b"sec-fetch-dest") == b"document"
    )


def _normalize(host: bytes) -> str:
    """Return a host in lower case, without the brackets of an IPv6 address and a final dot."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:-1]
    return text.removesuffix(".")


def _is_unspecified(host: str) -> bool:
    """Return True for the address of all interfaces, in any of its forms."""
    address = parse_ip_address(host)
    if address is None:
        # The C library takes "0" for 0.0.0.0.
        return host == "0"

    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_unspecified
