"""Failures of TLS in words for operators, for every HTTP client of the package."""

from __future__ import annotations

import ssl


def describe_tls_failure(error: BaseException) -> str | None:
    """Return the fault of a TLS connection; None if another fault was the first cause.

    The HTTP library wraps the error of TLS in several errors of its own: the first one names the
    cause.
    """
    first_error = error
    while True:
        earlier_error = first_error.__cause__ or first_error.__context__
        if earlier_error is None:
            break
        first_error = earlier_error

    if isinstance(first_error, ssl.SSLCertVerificationError):
        return "the certificate of the server is not valid"
    if isinstance(first_error, ssl.SSLError):
        return "the TLS connection failed: use TLS 1.2 or later"
    return None
