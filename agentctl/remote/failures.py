"""What goes wrong between here and a server, told as our own failures.

The texts are ours: an exception of the HTTP library decides the class and the cause, its own text
is not shown.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentctl import errors
from agentctl.remote.address import Address

if TYPE_CHECKING:
    import httpx2

__all__ = [
    "build_connection_error",
    "build_response_error",
    "build_unexpected_response_error",
    "has_error_body",
    "to_printable_line",
]

_CLEAR_WITHOUT_JSON = frozenset({401, 403, 413, 429, 431})
"""Statuses that mean the same whoever answers, a proxy in front of the server included."""

_MAXIMUM_TEXT = 500


def build_connection_error(address: Address, error: Exception) -> errors.Unavailable:
    """The failure of a connection or of an exchange over it."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError | httpx2.ProxyError):
        cause, hint = _explain_connect_error(address, error)
        return errors.Unavailable("Cannot reach the server", cause=cause, hint=hint)
    if isinstance(error, httpx2.TimeoutException):
        return errors.Unavailable(
            "The server did not answer in time",
            cause=f"{address.base} kept silent for too long",
            hint="what was asked for may still have happened: look before asking again",
        )
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.DecodingError):
        cause = f"{address.base} broke off its answer, or does not speak HTTP"
    else:
        cause = f"the connection to {address.base} broke"
    return errors.Unavailable(
        "Cannot reach the server", cause=cause, hint="check the URL and that the server runs"
    )


def build_response_error(
    address: Address, response: httpx2.Response, *, with_token: bool
) -> errors.AgentctlError:
    """The failure that an answer with a status of 400 or more, read to its end, stands for."""
    body = _parse_error_body(response.content)
    if body is None and not _is_clear_without_json(response.status_code):
        return build_unexpected_response_error(address, response)
    failure = errors.error_from_response(response.status_code, body or {})
    failure.detail = to_printable_line(failure.detail)
    if failure.hint is None:
        failure.hint = _credential_hint(failure, with_token)
    request_id = response.headers.get("x-request-id")
    if isinstance(failure, errors.InternalError) and request_id:
        failure.cause = f"the server's log has it under request id {to_printable_line(request_id)}"
    return failure


def has_error_body(response: httpx2.Response) -> bool:
    """Whether an answer, read to its end, is an error or nothing of ours, and no record."""
    body = _parse_error_body(response.content)
    return body is None or "detail" in body


def build_unexpected_response_error(
    address: Address, response: httpx2.Response
) -> errors.Unavailable:
    """The failure of an answer that no server of ours, or like ours, gives."""
    status = response.status_code
    where = f"{response.request.method} {to_printable_line(str(response.request.url.path))}"
    if 300 <= status < 400:
        return errors.Unavailable(
            "The server sends us elsewhere, and redirects are not followed",
            cause=f"{address.base} answered {where} with {status} to {_redirect_origin(response)}",
            hint="if that is the right server, name it with --url",
        )
    kind = response.headers.get("content-type", "no content type").partition(";")[0]
    return errors.Unavailable(
        "The URL does not look like that of such a server",
        cause=f"{address.base} answered {where} with {status} and {to_printable_line(kind)}",
        hint="check --url, its path included",
    )


def to_printable_line(text: str) -> str:
    """One line of `text` that is safe on a terminal: no control characters, bounded."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= _MAXIMUM_TEXT else line[:_MAXIMUM_TEXT] + "…"


def _explain_connect_error(address: Address, error: Exception) -> tuple[str, str]:
    import httpx2

    base = address.base
    if isinstance(error, httpx2.ProxyError):
        return f"the proxy on the way to {base} refused", "check HTTPS_PROXY and NO_PROXY"
    if isinstance(error, httpx2.ConnectTimeout):
        return f"{base} took no connection in time", "check the URL and the network"
    for step in _walk_causes(error):
        if isinstance(step, socket.gaierror):
            return f"the host of {base} is not known", "check the URL for a misspelt name"
        if isinstance(step, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {base} is not one to trust",
                "name its authority with SSL_CERT_FILE, or check the host name in the URL",
            )
        if isinstance(step, ssl.SSLError):
            return f"{base} does not speak TLS", "check whether it should be http://"
        if isinstance(step, ConnectionRefusedError):
            return f"nothing listens at {base}", "start it with: agentctl serve"
    return f"no connection to {base}", "check the URL and that the server runs"


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        step = waiting.pop()
        if step is None or id(step) in seen:
            continue
        seen.add(id(step))
        yield step
        waiting += [step.__cause__, step.__context__]
        if isinstance(step, BaseExceptionGroup):
            waiting += step.exceptions


def _parse_error_body(content: bytes) -> dict[str, object] | None:
    import orjson

    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _is_clear_without_json(status: int) -> bool:
    return status in _CLEAR_WITHOUT_JSON or status >= 500


def _credential_hint(failure: errors.AgentctlError, with_token: bool) -> str | None:
    if not isinstance(failure, errors.Unauthenticated):
        return None
    if with_token:
        return "`agentctl token inspect` tells what the token says, `agentctl token mint` makes one"
    return "give a token by --token-file or AGENTCTL_TOKEN; `agentctl token mint` makes one"


def _redirect_origin(response: httpx2.Response) -> str:
    """Origin of a redirect only: its path or query may hold what is not for the screen."""
    try:
        parts = urlsplit(response.headers.get("location", ""))
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    return to_printable_line(f"{parts.scheme}://{host}") if host else "another path"
