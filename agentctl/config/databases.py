"""The url of a database: a file of SQLite, or a database of a PostgreSQL server.

What a host to listen on means.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from agentctl.config.places import Place, join_quoted

__all__ = [
    "check_database_url",
    "display_url",
    "is_loopback_host",
    "is_sqlite_url",
    "split_address",
    "sqlite_path",
]

SQLITE_SCHEME = "sqlite:///"
POSTGRES_SCHEMES = ("postgresql://", "postgres://")

_PARAMETERS = ("host", "port", "user")
"""What a query may name, for a folder of sockets: `postgresql:///name?host=/run/postgresql`."""

_OTHER_KEYS = "it may name host, port and user; tls, search_path and others have keys of their own"

_SQLITE_FORM = '"sqlite:///" and the path of a file, like "sqlite:///agentctl.db"'
_POSTGRES_FORM = (
    '"postgresql://user@host/name", or "postgresql:///name?host=/run/postgresql&user=me"'
)


def check_database_url(url: str, base: Path, place: Place) -> str:
    """A url that a driver takes, the path of a file made absolute: `sqlite:///a.db` is in `base`.

    Raises:
        InvalidConfiguration: it is neither of SQLite nor of PostgreSQL, or not whole, or has a
            password.
    """
    if url.startswith(SQLITE_SCHEME):
        return _check_sqlite_url(url, base, place)
    if not url.startswith(POSTGRES_SCHEMES):
        place.refuse(f"must be {_SQLITE_FORM}; or {_POSTGRES_FORM}")
    _check_postgres_url(url, place)
    return url


def is_sqlite_url(url: str) -> bool:
    """Whether a checked url names a file of SQLite; else it is one of PostgreSQL."""
    return url.startswith(SQLITE_SCHEME)


def sqlite_path(url: str) -> Path:
    """The file that a checked url of SQLite names."""
    return Path(url.removeprefix(SQLITE_SCHEME))


def display_url(url: str) -> str:
    """A checked url as people may see it: the path of a file, or the url, which has no password."""
    return str(sqlite_path(url)) if is_sqlite_url(url) else url


def _check_sqlite_url(url: str, base: Path, place: Place) -> str:
    path = url.removeprefix(SQLITE_SCHEME)
    if not path.strip() or path.endswith("/") or ":memory:" in path or set(path) & set("?#"):
        place.refuse(f"must be {_SQLITE_FORM}, without a query")
    return SQLITE_SCHEME + os.path.normpath(base / path)


def _check_postgres_url(url: str, place: Place) -> None:
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
        port = parts.port or int(query.get("port", 0))
    except ValueError:
        place.refuse(f"must be {_POSTGRES_FORM}")
    if parts.password is not None or "password" in query:
        place.refuse(
            "must not hold a password",
            hint="name the variable that holds it in password_env, or use a ~/.pgpass file",
        )
    if unknown := query.keys() - set(_PARAMETERS):
        place.refuse(f"must not have {join_quoted(sorted(unknown))} in its query", hint=_OTHER_KEYS)
    if parts.fragment or not parts.path.strip("/") or "/" in parts.path[1:] or port > 65_535:
        place.refuse(f"must be {_POSTGRES_FORM}")


def is_loopback_host(host: str) -> bool:
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
