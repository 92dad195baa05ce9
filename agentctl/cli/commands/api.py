"""`agentctl api`: send any request to a server, with the token of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, quote, urlsplit

from agentctl.cli.io import current_io, read_text_or_stdin
from agentctl.cli.options import parse_object
from agentctl.cli.parameters import argument, option
from agentctl.cli.show.output import write_bytes
from agentctl.cli.show.terminal import note_detail
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError

if TYPE_CHECKING:
    from agentctl.remote.connection import Connection, Request

EXAMPLE = "agentctl api GET /sessions --query limit=5"

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

_KEPT_ERROR_BYTES = 1 << 16
"""Bytes of an error response that are read for the message."""


@with_target()
async def call_api(
    target: Target,
    method: Annotated[str, argument("METHOD", "HTTP method, such as GET")],
    path: Annotated[str, argument("PATH", "Path below the URL of the server: /sessions")],
    query: list[str] | None = option("--query", "KEY=VALUE", "Query parameter; may be repeated"),
    body: str | None = option("--body", "JSON", "JSON object (- reads stdin)"),
) -> None:
    """Send a request to the server and print the body of its response.

    An event stream is printed as it arrives. A status of 300 or higher is an error: the body is
    printed, and the exit code is the exit code of the error. A POST waits for its response without
    a time limit. `agentctl api GET /openapi.json` prints every path.
    """
    # Locally there is no connection: the service itself has the operations.
    connection: Connection | None = getattr(target.operations, "connection", None)
    if connection is None:
        raise UsageError("`api` needs a server", hint="select one with --url or --context")

    request = _build_request(method, path, query, body)
    async with connection.open_raw(request) as response:
        content_type = response.headers.get("content-type", "none")
        note_detail(f"content type: {content_type}")
        beginning = b""
        last = b"\n"
        async for chunk in connection.read_chunks(response):
            write_bytes(chunk)
            last = chunk[-1:] or last
            if len(beginning) < _KEPT_ERROR_BYTES:
                beginning += chunk
        if last != b"\n" and current_io().out_is_terminal:
            write_bytes(b"\n")
        connection.check_status(response, beginning)


def _build_request(method: str, path: str, query: list[str] | None, body: str | None) -> Request:
    from agentctl.remote.connection import Request

    verb = method.upper()
    if verb not in METHODS:
        raise UsageError(f"{method!r} is not an HTTP method", hint=f"use {', '.join(METHODS)}")

    parts = urlsplit(path)
    if not path.startswith("/") or path.startswith("//") or parts.fragment:
        raise UsageError(
            f"{path!r} is not a path on the server", hint="it begins with one slash: /sessions"
        )

    pairs = parse_qsl(parts.query, keep_blank_values=True)
    for text in query or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError("--query must be KEY=VALUE")
        pairs.append((key, value))

    # Escapes in the path stay unchanged.
    quoted_path = quote(parts.path, safe="/%:@!$&'()*+,;=~", errors="surrogateescape")
    content = None if body is None else read_text_or_stdin(body, "body")
    # The response of a run in the foreground comes at its end.
    wait = None if verb == "POST" else 0.0
    return Request(
        verb, quoted_path, tuple(pairs), parse_object("--body", content), extra_wait=wait
    )
