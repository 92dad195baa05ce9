"""Entity tags: responses that a client revalidates (RFC 9110 8.8.3 and 13.1.2).

A GET of a record or a list has an `ETag`. If the client sends the tag in `If-None-Match` and the
response would have the same one, it gets a 304 without a body. The tag is found by the operation
itself, so a caller that may not read the resource gets the error and never a 304
(docs/decisions/0069).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from starlette.responses import Response

from agentctl.server.answers import BytesResponse
from agentctl.server.response_budget import LARGE_BYTES

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_ETAG = b"etag"


class KnownTags:
    """The tags in `If-None-Match`, without the marks of weak ones.

    Args:
        headers: the raw header fields of a request, names in lower case.
    """

    __slots__ = ("_any", "_tags")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        text = ", ".join(
            value.decode("latin-1") for name, value in headers if name == b"if-none-match"
        )
        self._any = text.strip() == "*"
        self._tags = frozenset(_TAG.findall(text)) if text else frozenset[str]()

    def __contains__(self, tag: object) -> bool:
        return self._any or tag in self._tags

    def __bool__(self) -> bool:
        return self._any or bool(self._tags)


def versioned_response(response: BytesResponse, version: str) -> BytesResponse:
    """Return a response with the weak tag of a version that was found without its body."""
    response.raw_headers.append((_ETAG, f'W/"{version}"'.encode()))
    return response


def not_modified_response(tag: bytes) -> BytesResponse:
    """Return a 304 with its tag."""
    response = BytesResponse(b"", 304, None)
    response.raw_headers.append((_ETAG, tag))
    return response


def revalidate(response: Response, headers: Iterable[tuple[bytes, bytes]]) -> Response:
    """Return a successful response with a tag, or a 304 if the client has that tag.

    A response that has a tag keeps it. Otherwise the tag is a hash of the body, and a response of
    more than `LARGE_BYTES` gets none: it is not worth the time to hash it.

    Args:
        headers: the raw header fields of the request.
    """
    if not isinstance(response, BytesResponse) or response.status_code != 200:
        return response
    tag = next((value for name, value in response.raw_headers if name == _ETAG), None)
    if tag is None:
        if len(response.body) > LARGE_BYTES:
            return response
        tag = b'"%b"' % hashlib.sha256(response.body).hexdigest()[:32].encode()
        response.raw_headers.append((_ETAG, tag))
    known = KnownTags(headers)
    if known and tag.decode("ascii").removeprefix("W/")[1:-1] in known:
        return not_modified_response(tag)
    return response
