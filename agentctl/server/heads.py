"""What the head of a request must be before anything looks at it (RFC 9110, RFC 9112).

The parser below refuses most of what is not HTTP. Here stands the rest: what it lets through, and
what is legal but read differently by the next program, which is how requests are smuggled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentctl.errors import BadRequest

__all__ = ["CHUNKED", "NOT_HTTP", "Fields", "body_length", "check_line", "size"]

Fields = Sequence[tuple[bytes, bytes]]

NOT_HTTP = "The request is not valid HTTP"

CHUNKED = -1
"""The length of a body that comes in chunks: it is known at its end."""

_VERSIONS = frozenset({"1.0", "1.1"})
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_HIGHEST_PORT = 65_535

_ONCE = {
    b"host": "Host",
    b"authorization": "Authorization",
    b"content-type": "Content-Type",
    b"content-length": "Content-Length",
    b"transfer-encoding": "Transfer-Encoding",
}
"""Fields that programs choose differently from when there are several."""


def check_line(line: bytes, sent: bytes, *, first: bool) -> None:
    """Hold the request line against what was really sent: the parser skips spaces.

    Args:
        line: the request line as RFC 9112 3 writes it, put together from what the parser found.
        sent: the bytes that the head was in.
        first: the head stands at their beginning, behind empty lines at most (RFC 9112 2.2); else
            it is behind another request.

    Raises:
        BadRequest: the line is not in there.
    """
    if sent.startswith(line) or (not first and line in sent):
        return
    while sent.startswith(b"\r\n"):
        sent = sent[2:]
    if not sent.startswith(line):
        raise BadRequest(NOT_HTTP)


def size(target: bytes, fields: Fields) -> int:
    """The bytes of a head, without what may stand around its parts."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in fields)


def body_length(target: bytes, version: str, fields: Fields) -> int:
    """Check a head, and say how long the body behind it is.

    Args:
        target: what was asked for, as it was sent.
        version: of HTTP.
        fields: the header fields, names in lower case.

    Returns:
        Bytes, 0 when there is no body, `CHUNKED` when it comes in chunks.

    Raises:
        BadRequest: the target is no path with a query (RFC 9112 3.2.1 alone is for servers that
            are no proxies); another version than 1.0 and 1.1; not exactly one valid Host; more
            than one of another field of which there is one; a transfer coding besides chunked.
    """
    if target[:1] != b"/" or b"#" in target or version not in _VERSIONS:
        raise BadRequest(NOT_HTTP)
    known = dict(fields)
    if len(known) != len(fields):
        _check_repeated([name for name, _ in fields])
    if not _is_host(known.get(b"host", b"")):
        raise BadRequest("The header field Host is missing or not valid")
    return _framing(version, known)


def _check_repeated(names: list[bytes]) -> None:
    for name, shown in _ONCE.items():
        if names.count(name) > 1:
            raise BadRequest(f"The header field {shown} is given more than once")


def _is_host(value: bytes) -> bool:
    """A name or an address, and a port if any (RFC 9110 7.2); none of what URLs have beside."""
    found = _HOST.fullmatch(value)
    return found is not None and int(found[1] or 0) <= _HIGHEST_PORT


def _framing(version: str, known: dict[bytes, bytes]) -> int:
    coding = known.get(b"transfer-encoding")
    if coding is None:
        return int(known.get(b"content-length", 0))
    if version != "1.1" or coding.lower() != b"chunked" or b"content-length" in known:
        raise BadRequest(NOT_HTTP)
    return CHUNKED
