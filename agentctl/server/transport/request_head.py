"""What the head of a request must be before anything looks at it (RFC 9110, RFC 9112).

The parser below refuses most of what is not HTTP. Here stands the rest: what it lets through, and
what is legal but read differently by the next program, which is how requests are smuggled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from agentctl.errors import BadRequest

__all__ = [
    "CHUNKED",
    "NOT_HTTP",
    "BodyFraming",
    "HeaderFields",
    "check_head",
    "check_request_line",
    "head_size",
]

HeaderFields = Sequence[tuple[bytes, bytes]]

NOT_HTTP = "The request is not valid HTTP"

CHUNKED = -1
"""The length of a body that comes in chunks: it is known at its end."""

_LINE_ENDS = {"1.0": b" HTTP/1.0\r\n", "1.1": b" HTTP/1.1\r\n"}
"""How the request line ends, by the versions that there are."""

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
"""Fields that programs choose differently from when there are several."""


class BodyFraming(NamedTuple):
    """What a head says of the body behind it.

    Attributes:
        length: bytes, 0 when there is none, `CHUNKED` when it comes in chunks.
        awaited: the client sends it when it is told to go on (RFC 9110 10.1.1).
    """

    length: int
    awaited: bool


_NO_BODY = BodyFraming(0, awaited=False)


def check_request_line(
    method: bytes, target: bytes, version: str, sent: bytes, *, first: bool
) -> None:
    """Hold the request line against what was really sent: the parser skips spaces.

    Args:
        method: as the parser found it; `target`, `version` likewise.
        sent: the bytes that the head was in.
        first: the head stands at their beginning, behind empty lines at most (RFC 9112 2.2); else
            it is behind another request.

    Raises:
        BadRequest: the line is not in there, or it is of another version than 1.0 and 1.1.
    """
    line = method + b" " + target + _LINE_ENDS.get(version, b"\0")
    if sent.startswith(line) or (not first and line in sent):
        return
    while sent.startswith(b"\r\n"):
        sent = sent[2:]
    if not sent.startswith(line):
        raise BadRequest(NOT_HTTP)


def head_size(target: bytes, fields: HeaderFields) -> int:
    """The bytes of a head, without what may stand around its parts."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in fields)


def check_head(method: bytes, target: bytes, version: str, fields: HeaderFields) -> BodyFraming:
    """Check a head, and say what comes behind it.

    Args:
        method: as it was sent.
        target: what was asked for, as it was sent.
        version: of HTTP.
        fields: the header fields, names in lower case.

    Raises:
        BadRequest: the target is no path with a query (RFC 9112 3.2.1: the others are for proxies);
            not exactly one valid Host; more than one of another field of which there is one; a
            transfer coding besides chunked, or one in HTTP/1.0.
    """
    if target[0] != 0x2F or b"#" in target or method == b"CONNECT":
        raise BadRequest(NOT_HTTP)
    known = dict(fields)
    if len(known) != len(fields):
        _check_repeated([name for name, _ in fields])
    host = known.get(b"host", b"")
    if len(host) > _LONGEST_HOST or not _is_host(host):
        raise BadRequest("The header field Host is missing or not valid")
    if b"content-length" in known or b"transfer-encoding" in known:
        return _parse_framing(version, known)
    return _NO_BODY


def _check_repeated(names: list[bytes]) -> None:
    for name, shown in _SINGLE_FIELDS.items():
        if names.count(name) > 1:
            raise BadRequest(f"The header field {shown} is given more than once")


@functools.lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    """A name or an address, and a port if any (RFC 9110 7.2); none of what URLs have beside."""
    found = _HOST.fullmatch(value)
    return found is not None and int(found[1] or 0) <= _HIGHEST_PORT


def _parse_framing(version: str, known: dict[bytes, bytes]) -> BodyFraming:
    awaited = version == "1.1" and known.get(b"expect", b"").lower() == b"100-continue"
    coding = known.get(b"transfer-encoding")
    if coding is None:
        length = int(known[b"content-length"])
        return BodyFraming(length, awaited and length > 0)
    if version != "1.1" or coding.lower() != b"chunked" or b"content-length" in known:
        raise BadRequest(NOT_HTTP)
    return BodyFraming(CHUNKED, awaited)
