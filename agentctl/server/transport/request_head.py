"""Checks of the request line and the header fields (RFC 9110, RFC 9112).

llhttp rejects most invalid requests. These checks reject the rest, and legal requests that other
programs read differently, which would allow request smuggling.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from agentctl.errors import BadRequest

HeaderFields = Sequence[tuple[bytes, bytes]]

NOT_HTTP = "The request is not valid HTTP"

CHUNKED = -1
"""The length of a chunked body, which is unknown until its end."""

_LINE_ENDS = {"1.0": b" HTTP/1.0\r\n", "1.1": b" HTTP/1.1\r\n"}
"""The end of the request line, by HTTP version."""

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_HIGHEST_PORT = 65_535
_LONGEST_HOST = 300

_SINGLE_FIELDS = {
    b"host": "Host",
    b"authorization": "Authorization",
    b"content-type": "Content-Type",
    b"content-length": "Content-Length",
    b"transfer-encoding": "Transfer-Encoding",
}
"""Fields that may occur once: programs disagree which one of several counts."""


class BodyFraming(NamedTuple):
    """The framing of a body, as its header section announces it.

    Attributes:
        length: number of bytes; 0 without a body, `CHUNKED` for a chunked one.
        awaited: True if the client waits for a 100 (RFC 9110 10.1.1).
    """

    length: int
    awaited: bool


_NO_BODY = BodyFraming(0, awaited=False)


def check_request_line(
    method: bytes, target: bytes, version: str, received: bytes, *, first: bool
) -> None:
    """Compare the parsed request line with the received bytes, because llhttp skips spaces.

    Args:
        method, target, version: the parts of the line, as llhttp parsed them.
        received: the received bytes that contain the head.
        first: True if the head is at the start of these bytes, after empty lines at most (RFC
            9112 2.2); False if it follows another request.

    Raises:
        BadRequest: the bytes do not contain the line, or the version is not 1.0 or 1.1.
    """
    line = method + b" " + target + _LINE_ENDS.get(version, b"\0")
    if received.startswith(line) or (not first and line in received):
        return
    while received.startswith(b"\r\n"):
        received = received[2:]
    if not received.startswith(line):
        raise BadRequest(NOT_HTTP)


def head_size(target: bytes, fields: HeaderFields) -> int:
    """Return the size of a head in bytes, without optional spaces."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in fields)


def check_head(method: bytes, target: bytes, version: str, fields: HeaderFields) -> BodyFraming:
    """Check a head and return the framing of the body after it.

    Args:
        method: the raw method.
        target: the raw request target.
        version: the HTTP version.
        fields: the header fields, names in lower case.

    Raises:
        BadRequest: the target is not a path with a query (RFC 9112 3.2.1: other forms are for
            proxies); there is not exactly one valid Host; a field that may occur once is repeated;
            a transfer coding is not chunked, or is used with HTTP/1.0.
    """
    if target[0] != 0x2F or b"#" in target or method == b"CONNECT":
        raise BadRequest(NOT_HTTP)
    by_name = dict(fields)
    if len(by_name) != len(fields):
        names = [name for name, _ in fields]
        for name, label in _SINGLE_FIELDS.items():
            if names.count(name) > 1:
                raise BadRequest(f"The header field {label} is given more than once")
    host = by_name.get(b"host", b"")
    if len(host) > _LONGEST_HOST or not _is_host(host):
        raise BadRequest("The header field Host is missing or not valid")
    coding = by_name.get(b"transfer-encoding")
    if coding is None and b"content-length" not in by_name:
        return _NO_BODY
    awaited = version == "1.1" and by_name.get(b"expect", b"").lower() == b"100-continue"
    if coding is None:
        length = int(by_name[b"content-length"])
        return BodyFraming(length, awaited and length > 0)
    if version != "1.1" or coding.lower() != b"chunked" or b"content-length" in by_name:
        raise BadRequest(NOT_HTTP)
    return BodyFraming(CHUNKED, awaited)


@functools.lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    """Return True for a name or address with an optional port (RFC 9110 7.2)."""
    match = _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= _HIGHEST_PORT
