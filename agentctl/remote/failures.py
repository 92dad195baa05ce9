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

__all__ = ["cannot_reach", "from_answer", "is_error_body", "printable", "unlike_a_server"]

_TELLING_WITHOUT_JSON = frozenset({401, 403, 413, 429, 431})
"""Statuses that mean the same whoever answers, a proxy in front of the server included."""

_TEXT_LIMIT = 500


def cannot_reach(address: Address, error: Exception) -> errors.Unavailable:
    """The failure of a connection or of an exchange over it."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError | httpx2.ProxyError):
        cause, hint = _connecting(address, error)
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


def from_answer(
    address: Address, response: httpx2.Response, *, with_token: bool
) -> errors.AgentctlError:
    """The failure that an answer with a status of 400 or more, read to its end, stands for."""
    body = _error_body(response.content)
    if body is None and not _tells_without_json(response.status_code):
        return unlike_a_server(address, response)
    failure = errors.from_response(response.status_code, body or {})
    failure.detail = printable(failure.detail)
    if failure.hint is None:
        failure.hint = _hint(failure, with_token)
    request_id = response.headers.get("x-request-id")
    if isinstance(failure, errors.InternalFailure) and request_id:
        failure.cause = f"the server's log has it under request id {printable(request_id)}"
    return failure


def is_error_body(response: httpx2.Response) -> bool:
    """Whether an answer, read to its end, is an error or nothing of ours, and no record."""
    body = _error_body(response.content)
    return body is None or "detail" in body


def unlike_a_server(address: Address, response: httpx2.Response) -> errors.Unavailable:
    """The failure of an answer that no server of ours, or like ours, gives."""
    status = response.status_code
    where = f"{response.request.method} {printable(str(response.request.url.path))}"
    if 300 <= status < 400:
        return errors.Unavailable(
            "The server sends us elsewhere, and redirects are not followed",
            cause=f"{address.base} answered {where} with {status} to {_target(response)}",
            hint="if that is the right server, name it with --url",
        )
    kind = response.headers.get("content-type", "no content type").partition(";")[0]
    return errors.Unavailable(
        "The URL does not look like that of such a server",
        cause=f"{address.base} answered {where} with {status} and {printable(kind)}",
        hint="check --url, its path included",
    )


def printable(text: str) -> str:
    """One line of `text` that is safe on a terminal: no control characters, bounded."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= _TEXT_LIMIT else line[:_TEXT_LIMIT] + "…"


def _connecting(address: Address, error: Exception) -> tuple[str, str]:
    import httpx2

    base = address.base
    if isinstance(error, httpx2.ProxyError):
        return f"the proxy on the way to {base} refused", "check HTTPS_PROXY and NO_PROXY"
    if isinstance(error, httpx2.ConnectTimeout):
        return f"{base} took no connection in time", "check the URL and the network"
    for step in _chain(error):
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


def _chain(error: BaseException) -> Iterator[BaseException]:
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


def _error_body(content: bytes) -> dict[str, object] | None:
    import orjson

    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _tells_without_json(status: int) -> bool:
    return status in _TELLING_WITHOUT_JSON or status >= 500


def _hint(failure: errors.AgentctlError, with_token: bool) -> str | None:
    if not isinstance(failure, errors.Unauthenticated):
        return None
    if with_token:
        return "`agentctl token inspect` tells what the token says, `agentctl token mint` makes one"
    return "give a token by --token-file or AGENTCTL_TOKEN; `agentctl token mint` makes one"


def _target(response: httpx2.Response) -> str:
    """Origin of a redirect only: its path or query may hold what is not for the screen."""
    try:
        parts = urlsplit(response.headers.get("location", ""))
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    return printable(f"{parts.scheme}://{host}") if host else "another path"
