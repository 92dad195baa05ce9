"""The outermost ASGI application of each connection: refuses requests that are not valid HTTP.

llhttp rejects most of them, `protocol` those that only the bytes show. The guard rejects the rest,
and legal requests that other programs read differently, which would allow request smuggling
(RFC 9110, RFC 9112, `docs/internals/security-cases.md` "Transport").
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.errors import AgentctlError, BadRequest, HeaderTooLarge
from agentctl.records.logs import set_log_context
from agentctl.records.text import new_id
from agentctl.server.answers import add_common_headers, error_response

NOT_HTTP = "The request is not valid HTTP"

CYCLE_KEY = "agentctl.cycle"
"""Key of uvicorn's cycle of a request of HTTP/1.0, in the ASGI scope."""

ENDLESS = sys.maxsize
"""The announced length of a response that the close of its connection ends."""

MAXIMUM_HEAD_BYTES = 16_384
"""Maximum number of bytes of the request line and the header fields together."""

MAXIMUM_FIELDS = 100
"""Maximum number of header fields of a request."""

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_HIGHEST_PORT = 65_535

_LONGEST_HOST = 300
"""Maximum number of bytes of a Host: a name has up to 255 (RFC 1035 2.3.4)."""

_SINGLE_FIELDS = {
    b"host": "Host",
    b"authorization": "Authorization",
    b"content-type": "Content-Type",
    b"content-length": "Content-Length",
    b"transfer-encoding": "Transfer-Encoding",
}
"""Fields that may occur once: programs disagree which one of several counts."""

_log = logging.getLogger("agentctl.server")


class RequestGuard:
    """Serves the valid requests of an application, and refuses all others with an error body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_head(scope)
        except AgentctlError as error:
            headers, body = build_refusal(error)
            await send({"type": "http.response.start", "status": error.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return

        if scope["http_version"] == "1.0":
            send = _end_by_close(scope[CYCLE_KEY], send)
        await self.app(scope, receive, send)


def check_head(scope: Scope) -> None:
    """Check a request line and header fields that llhttp has accepted.

    Raises:
        HeaderTooLarge: too many bytes or fields.
        BadRequest: another version than 1.0 and 1.1; CONNECT; not exactly one valid Host; a field
            that may occur once is repeated; a transfer coding is not chunked, or is used with
            HTTP/1.0.
    """
    fields: Sequence[tuple[bytes, bytes]] = scope["headers"]
    if len(fields) > MAXIMUM_FIELDS:
        raise HeaderTooLarge("The request has too many header fields")

    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum([len(name) + len(value) + 4 for name, value in fields])
    if size > MAXIMUM_HEAD_BYTES:
        raise build_too_large_header()

    version = scope["http_version"]
    if version not in ("1.0", "1.1") or scope["method"] == "CONNECT":
        raise BadRequest(NOT_HTTP)

    by_name = dict(fields)
    if len(by_name) != len(fields):
        _check_repeated(fields)
    if not _is_host(by_name.get(b"host", b"")):
        raise BadRequest("The header field Host is missing or not valid")

    coding = by_name.get(b"transfer-encoding")
    if coding is None:
        return
    if version != "1.1" or coding.lower() != b"chunked" or b"content-length" in by_name:
        raise BadRequest(NOT_HTTP)


def _check_repeated(fields: Sequence[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in fields]
    for name, label in _SINGLE_FIELDS.items():
        if names.count(name) > 1:
            raise BadRequest(f"The header field {label} is given more than once")


@functools.lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    """Return True for a name or address with an optional port (RFC 9110 7.2)."""
    if len(value) > _LONGEST_HOST:
        return False
    match = _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= _HIGHEST_PORT


def build_too_large_header() -> HeaderTooLarge:
    return HeaderTooLarge("The header of the request is too large")


def build_refusal(error: AgentctlError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the header fields and the body of a response after which the connection is closed.

    The log gets a line with the id of the response.
    """
    request_id = new_id()
    set_log_context(request_id=request_id)
    _log.info("rejected an invalid request: %s", error.detail)

    response = error_response(error)
    headers = add_common_headers(response.raw_headers, request_id)
    return [*headers, (b"connection", b"close")], bytes(response.body)


def _end_by_close(cycle: Any, send: Send) -> Send:
    """Return a `send` that sends no chunks, which a client of HTTP/1.0 does not read.

    The close of the connection ends a response without a length (RFC 9112 6.1, 6.3). uvicorn has no
    such response: it would announce chunks, or compare the body with an announced length.
    """

    async def send_without_chunks(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, value)
                for name, value in message.get("headers", ())
                if name.lower() != b"transfer-encoding"
            ]
            if all(name.lower() != b"content-length" for name, _ in headers):
                cycle.chunked_encoding = False
                cycle.expected_content_length = ENDLESS
            message = {**message, "headers": headers}
        elif not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_without_chunks
