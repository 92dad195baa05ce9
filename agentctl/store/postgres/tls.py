"""TLS of connections to PostgreSQL: the verification of its certificate, and that of the client."""

from __future__ import annotations

import os
import ssl

from agentctl import errors
from agentctl.config.settings import Database as Entry


def build_tls(entry: Entry) -> ssl.SSLContext | str:
    """Build the argument `ssl` of `asyncpg.connect`.

    The modes without verification are those of asyncpg, which has no argument for `tls_ca_file`.
    """
    if not entry.tls.startswith("verify"):
        return entry.tls
    try:
        context = ssl.create_default_context(cafile=entry.tls_ca_file)
    except OSError:
        raise errors.InvalidConfiguration(
            f"The certificates of database {entry.id!r} cannot be read",
            cause=f"tls_ca_file is {entry.tls_ca_file}",
        ) from None
    context.check_hostname = entry.tls == "verify-full"
    _load_client_certificate(context, entry)
    return context


def _load_client_certificate(context: ssl.SSLContext, entry: Entry) -> None:
    """Load the client certificate that PGSSLCERT names, as asyncpg does without verification."""
    certificate, key = os.environ.get("PGSSLCERT"), os.environ.get("PGSSLKEY")
    if not certificate:
        return
    try:
        # Without a password OpenSSL would prompt for that of an encrypted key.
        context.load_cert_chain(certificate, key or None, password="")
    except OSError:
        raise errors.InvalidConfiguration(
            f"The client certificate for database {entry.id!r} cannot be read",
            cause=f"PGSSLCERT is {certificate}, PGSSLKEY is {key or 'not set'}",
        ) from None
