"""URLs of databases: SQLite or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from agentctl.config.places import Place, join_quoted

SQLITE_SCHEME = "sqlite:///"
POSTGRES_SCHEMES = ("postgresql://", "postgres://")

_SQLITE_FORM = '"sqlite:///" and the path of a file, like "sqlite:///agentctl.db"'
_POSTGRES_FORM = (
    '"postgresql://user@host/name", or "postgresql:///name?host=/run/postgresql&user=me"'
)


def check_database_url(url: str, base: Path, place: Place) -> str:
    """Check a URL and make the path of a SQLite file absolute.

    Args:
        base: the folder of relative paths: `sqlite:///a.db` is in `base`.

    Raises:
        InvalidConfiguration: the URL is not a URL of SQLite or PostgreSQL, is incomplete, or has a
            password.
    """
    if url.startswith(SQLITE_SCHEME):
        path = url.removeprefix(SQLITE_SCHEME)
        if not path.strip() or path.endswith("/") or ":memory:" in path or set(path) & set("?#"):
            place.refuse(f"must be {_SQLITE_FORM}, without a query")
        return SQLITE_SCHEME + os.path.normpath(base / path)

    if not url.startswith(POSTGRES_SCHEMES):
        place.refuse(f"must be {_SQLITE_FORM}; or {_POSTGRES_FORM}")

    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
        port = parts.port or int(query.get("port", 0))
    except ValueError:
        place.refuse(f"must be {_POSTGRES_FORM}")

    if parts.password is not None or "password" in query:
        place.refuse(
            "must not contain a password",
            hint="set password_env to the name of a variable, or use a ~/.pgpass file",
        )

    # libpq takes its other options from the query, too: they could replace keys of this file.
    unknown_names = query.keys() - {"host", "port", "user"}
    if unknown_names:
        place.refuse(
            f"must not have {join_quoted(sorted(unknown_names))} in its query",
            hint="it may have host, port and user; tls, search_path and others are separate keys",
        )

    names_one_database = parts.path.strip("/") != "" and "/" not in parts.path[1:]
    if parts.fragment or not names_one_database or port > 65_535:
        place.refuse(f"must be {_POSTGRES_FORM}")
    return url


def is_sqlite_url(url: str) -> bool:
    """Return True if a checked URL is a SQLite file, False for PostgreSQL."""
    return url.startswith(SQLITE_SCHEME)


def sqlite_path(url: str) -> Path:
    """Return the path of the file of a checked URL of SQLite."""
    return Path(url.removeprefix(SQLITE_SCHEME))


def build_url(place: str) -> str:
    """Return the value of `url` in the configuration for a result of `display_url`."""
    return f"{SQLITE_SCHEME}{place}" if place.startswith("/") else place


def display_url(url: str) -> str:
    """Return a checked URL for messages: the path of a file, or the URL without a password."""
    return str(sqlite_path(url)) if is_sqlite_url(url) else url
