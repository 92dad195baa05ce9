"""Errors of connections and responses, as errors of this package.

The exception of the HTTP library selects the class and the cause; its text is never shown.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson

from agentctl import errors
from agentctl.records.proxies import find_proxy_variable
from agentctl.records.times import read_retry_after
from agentctl.remote.address import Address

if TYPE_CHECKING:
    import httpx2

_CLEAR_WITHOUT_JSON = frozenset({401, 403, 413, 429, 431})
"""Statuses with the same meaning from a proxy as from the server."""

_PAGES = frozenset({"/console", "/chat", "/docs", "/guide", "/v1", "/mcp"})
"""Paths below the URL of a server that are copied in its place."""

_MAXIMUM_TEXT = 500


def build_connection_error(address: Address, error: Exception) -> errors.Unavailable:
    """Build the error of a connection that failed or broke."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError | httpx2.ProxyError):
        cause, hint = _explain_connect_error(address, error)
        return errors.NotConnected("Cannot reach the server", cause=cause, hint=hint)
    if isinstance(error, httpx2.TimeoutException):
        return _build_timeout(f"{address.base} sent nothing for too long")
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.DecodingError):
        cause = f"{address.base} cut off its response, or does not speak HTTP"
    else:
        cause = f"the connection to {address.base} broke"
    return errors.Unavailable(
        "Cannot reach the server", cause=cause, hint="check the URL and that the server runs"
    )


def build_response_error(
    address: Address, response: httpx2.Response, *, with_token: bool
) -> errors.AgentctlError:
    """Build the error of a complete response with a status from 400."""
    body = parse_object(response.content)
    is_clear = response.status_code in _CLEAR_WITHOUT_JSON or response.status_code >= 500
    if body is None and not is_clear:
        return build_unexpected_response_error(address, response)

    failure = errors.error_from_response(response.status_code, _join_details(body or {}))
    failure.detail = to_printable_line(failure.detail)

    if failure.hint is None and isinstance(failure, errors.Unauthenticated):
        failure.hint = (
            "pass a token with --token-file or AGENTCTL_TOKEN;"
            " `agentctl login` or `agentctl token mint` gets one"
        )
        if with_token:
            failure.hint = (
                "`agentctl token inspect` shows the token, `agentctl token mint` creates a new one"
            )

    if failure.hint is None and failure.detail in ("Not found", errors.NO_SUCH_PATH):
        # The server has no such route, or the value cannot be an id.
        failure.hint = "check the id, and --url including its path"
        page = f"/{address.prefix.rpartition('/')[2]}"
        if page in _PAGES:
            failure.hint = f"leave out {page}: --url {address.base.removesuffix(page)}"

    failure.retry_after = read_retry_after(response.headers) or failure.retry_after

    request_id = response.headers.get("x-request-id")
    if isinstance(failure, errors.InternalError) and request_id:
        failure.cause = (
            f"the log of the server has details for request {to_printable_line(request_id)}"
        )

    return failure


def has_error_body(response: httpx2.Response) -> bool:
    """Return True if a complete response is an error or not from agentctl, and not a record."""
    body = parse_object(response.content)
    return body is None or "detail" in body


def build_unexpected_response_error(
    address: Address, response: httpx2.Response
) -> errors.Unavailable:
    """Build the error of a response that agentctl does not send."""
    status = response.status_code
    where = f"{response.request.method} {to_printable_line(str(response.request.url.path))}"

    if 300 <= status < 400:
        failure = errors.Unavailable(
            "The server sent a redirect, which is not followed",
            cause=f"{address.base} answered {where} with {status} to {_redirect_origin(response)}",
            hint="if that is the right server, use its URL with --url",
        )
    else:
        kind = response.headers.get("content-type", "no content type").partition(";")[0]
        failure = errors.Unavailable(
            "The URL is not that of an agentctl server",
            cause=f"{address.base} answered {where} with {status} and {to_printable_line(kind)}",
            hint="check --url, including its path",
        )

    failure.retry_after = None
    return failure


def build_invalid_response(
    cause: str, hint: str = "check --url, including its path, and the version of the server"
) -> errors.InvalidResponse:
    """Build the error of a response that does not follow the interface.

    Args:
        cause: continues "it", the response; it contains nothing that the server sent except the
            names of fields.
    """
    return errors.InvalidResponse(
        "The response of the server is not what agentctl expects",
        cause=to_printable_line(cause),
        hint=hint,
    )


def build_encoded_response_error() -> errors.InvalidResponse:
    """Build the error of a compressed response; its size is not known before it is unpacked."""
    return build_invalid_response(
        "it is compressed, although the request excludes that",
        hint="disable compression in the proxy in front of the server",
    )


def build_slow_response_error(address: Address) -> errors.Unavailable:
    """Build the error of a response that is sent too slowly, in however many pieces."""
    return _build_timeout(f"{address.base} did not complete its response")


def to_printable_line(text: str) -> str:
    """Return `text` as one line for a terminal: without control characters, at most 500 long."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= _MAXIMUM_TEXT else line[:_MAXIMUM_TEXT] + "…"


def _build_timeout(cause: str) -> errors.Unavailable:
    return errors.Unavailable(
        "The server did not respond in time",
        cause=cause,
        hint="it may have processed the request: check before you retry",
    )


def _explain_connect_error(address: Address, error: Exception) -> tuple[str, str]:
    import httpx2

    base = address.base
    proxy = find_proxy_variable(base)

    if isinstance(error, httpx2.ProxyError):
        return (
            f"the proxy for {base} refused the connection",
            f"check {proxy or 'HTTPS_PROXY'}, or name the host in NO_PROXY",
        )

    for step in _walk_causes(error):
        if isinstance(step, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {base} is not trusted",
                "set SSL_CERT_FILE to its certificate authority, or check the host name",
            )
        if isinstance(step, ssl.SSLError):
            return f"{base} does not speak TLS", "check if the URL should start with http://"

    if proxy is not None:
        return (
            f"the proxy for {base}, which {proxy} names, does not accept connections",
            f"check {proxy}, or name the host in NO_PROXY",
        )
    if isinstance(error, httpx2.ConnectTimeout):
        return f"{base} did not accept a connection in time", "check the URL and the network"

    for step in _walk_causes(error):
        if isinstance(step, socket.gaierror):
            return f"the host name of {base} cannot be resolved", "check the spelling of the URL"
        if isinstance(step, ConnectionRefusedError):
            return f"no server listens at {base}", "start one with: agentctl serve"

    return f"no connection to {base}", "check the URL and that the server runs"


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and each exception that it comes from."""
    waiting: list[BaseException | None] = [error]
    # Chains may be cyclic.
    seen_ids: set[int] = set()
    while waiting:
        step = waiting.pop()
        if step is None or id(step) in seen_ids:
            continue
        seen_ids.add(id(step))

        yield step
        waiting += [step.__cause__, step.__context__]
        if isinstance(step, BaseExceptionGroup):
            waiting += step.exceptions


def parse_object(content: bytes) -> dict[str, object] | None:
    """Return the JSON object of a response, None for any other content."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _join_details(body: dict[str, object]) -> dict[str, object]:
    """Return the body of an error with one text, where FastAPI has a list of faults."""
    details = body.get("detail")
    if not isinstance(details, list):
        return body

    texts: list[str] = []
    for detail in details:
        if not isinstance(detail, dict) or not isinstance(detail.get("msg"), str):
            continue
        text = detail["msg"]
        place = detail.get("loc")
        if isinstance(place, list) and len(place) > 1:
            # The first part of a place is `body`, `query` or `path`.
            name = ".".join(str(part) for part in place[1:])
            text = f"{name}: {text}"
        texts.append(text)

    return {**body, "detail": "; ".join(texts)} if texts else body


def _redirect_origin(response: httpx2.Response) -> str:
    try:
        parts = urlsplit(response.headers.get("location", ""))
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    return to_printable_line(f"{parts.scheme}://{host}") if host else "another path"
