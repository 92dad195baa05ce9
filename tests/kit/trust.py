"""The trusted authorities, loaded once for all clients of a process."""

from __future__ import annotations

import functools
import os
import ssl

import httpcore2

__all__ = ["share_trust"]


def share_trust() -> None:
    """Load the trusted authorities once: it takes 25 ms, and every client of a test would do it."""
    load = httpcore2.default_ssl_context
    cached = functools.cache(lambda _names, **options: load(**options))

    def share(**options: bool) -> ssl.SSLContext:
        # A test may name other authorities.
        names = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        return cached(names, **options)

    httpcore2.default_ssl_context = share
