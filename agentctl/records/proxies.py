"""The proxies that the environment names, for every HTTP client of the package.

HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, also in lower case, which wins; NO_PROXY names hosts without
one. Requests to this machine never use a proxy: it could not reach the same server, and what stays
on the machine may be plain text with secrets.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks the second

from agentctl.errors import InvalidConfiguration
from agentctl.records.hosts import is_loopback_host

_SCHEMES = ("http", "https", "socks5", "socks5h")

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,20})://", re.IGNORECASE)

_LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")
"""Patterns of httpx2 for the usual names of this machine."""

_ELSEWHERE = "https://elsewhere.invalid"


def find_proxy_variable(url: str) -> str | None:
    """Return the name of the variable with the proxy for requests to a URL; None without a proxy.

    Args:
        url: http or https; empty for a host elsewhere that only a library knows.
    """
    parts = urlsplit(url or _ELSEWHERE)
    host = parts.hostname or ""
    proxies = getproxies_environment()
    is_here = is_loopback_host(host) or host.endswith(".localhost")
    if is_here or proxy_bypass_environment(host, proxies):
        return None

    for scheme in (parts.scheme, "all"):
        if proxies.get(scheme):
            return _find_name(scheme)
    return None


def check_proxy(url: str) -> None:
    """Check the proxy for requests to a URL, if there is one; see `find_proxy_variable`.

    Raises:
        InvalidConfiguration: the variable has no URL of a proxy, or one of a kind that cannot be
            used. The error names the variable, never its value, which may contain a password.
    """
    name = find_proxy_variable(url)
    if name is not None:
        _check_value(name, _add_scheme(os.environ[name]))


def build_proxy_options(url: str) -> dict[str, Any]:
    """Return the arguments of an `httpx2.AsyncClient` whose requests go to one URL.

    The client reads nothing else from the environment: pass `verify=httpx2.create_ssl_context()`,
    which reads SSL_CERT_FILE and SSL_CERT_DIR.

    Raises:
        InvalidConfiguration: as of `check_proxy`.
    """
    name = find_proxy_variable(url)
    if name is None:
        return {"trust_env": False}
    value = _add_scheme(os.environ[name])
    _check_value(name, value)
    return {"trust_env": False, "proxy": value}


def build_any_proxy_options() -> dict[str, Any]:
    """Return the arguments of an `httpx2.AsyncClient` whose requests go to any URL.

    Raises:
        InvalidConfiguration: as of `check_proxy`, for each proxy of the environment.
    """
    for url in ("http://elsewhere.invalid", _ELSEWHERE):
        check_proxy(url)
    return {"mounts": dict.fromkeys(_LOOPBACK)}


def _find_name(scheme: str) -> str:
    """Return the name of the variable that `getproxies_environment` has read."""
    lower = f"{scheme}_proxy"
    if lower in os.environ:
        return lower
    return next(name for name in os.environ if name.lower() == lower)


def _add_scheme(value: str) -> str:
    return value if "://" in value else f"http://{value}"


def _check_value(name: str, value: str) -> None:
    match = _SCHEME.match(value)
    scheme = match[1].lower() if match is not None else ""
    hint = f"correct it, unset {name}, or name hosts without a proxy in NO_PROXY"
    if scheme not in _SCHEMES:
        kind = f"the scheme {scheme}" if scheme else "no scheme"
        raise InvalidConfiguration(
            f"The proxy of the environment variable {name} cannot be used",
            cause=f"it has {kind}, not http, https, socks5 or socks5h",
            hint=hint,
        )

    try:
        parts = urlsplit(value)
        is_url = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not _is_accepted(value):
        raise InvalidConfiguration(
            f"The proxy of the environment variable {name} cannot be used",
            cause="it is not a URL with a host, such as http://proxy.example.org:3128",
            hint=hint,
        )

    if scheme.startswith("socks") and find_spec("socksio") is None:
        raise InvalidConfiguration(
            f"The proxy of the environment variable {name} cannot be used",
            cause="SOCKS needs a package that is not installed: socksio",
            hint=f"install it, unset {name}, or name hosts without a proxy in NO_PROXY",
        )


def _is_accepted(value: str) -> bool:
    """Return True if the HTTP library can read a URL."""
    import httpx2

    try:
        httpx2.Proxy(value)
    except (ValueError, httpx2.InvalidURL):
        return False
    return True
