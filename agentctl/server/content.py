"""The content of a request: its type, its bytes within bounds, strict JSON, and pairs of forms."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType
from agentctl.records.strict import MAXIMUM_VALUES, has_too_many_values, parse_json

MAXIMUM_PAIRS = 100
"""Pairs in one query string or form. No regular client sends more."""

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def read_content_type(request: Request) -> str:
    """Return the header field Content-Type of a body without a content encoding.

    Raises:
        UnsupportedMediaType: the body has a content encoding.
        BadRequest: there are several fields.
    """
    for coding in ",".join(request.headers.getlist("content-encoding")).split(","):
        if coding.strip().lower() not in ("", "identity"):
            raise UnsupportedMediaType("A body with a content encoding is not supported")

    content_types = request.headers.getlist("content-type")
    if len(content_types) > 1:
        raise BadRequest("The header field Content-Type is given more than once")
    return content_types[0] if content_types else ""


def read_media_type(request: Request) -> str:
    """Return the media type of a body, in lower case and without parameters; "" without a type.

    Raises:
        UnsupportedMediaType, BadRequest: see `read_content_type`.
    """
    return read_content_type(request).partition(";")[0].strip().lower()


def build_too_large_body(limit: int) -> TooLarge:
    """Return the error for a body of more than `limit` bytes."""
    return TooLarge(f"The body is larger than {limit} bytes")


def check_announced_length(request: Request, limit: int) -> None:
    """Raise TooLarge if the header section announces a body of more than `limit` bytes."""
    announced = request.headers.get("content-length", "")
    # To convert a number of very many digits would take long.
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise build_too_large_body(limit)


async def read_content(request: Request, limit: int) -> bytes:
    """Return the bytes of the whole body.

    Raises:
        TooLarge: the announced length or the received bytes exceed `limit`.
        ClientDisconnect: the client disconnected before the end of the body.
    """
    check_announced_length(request, limit)

    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > limit:
            raise build_too_large_body(limit)
    return bytes(content)


def parse_json_content(content: bytes) -> object:
    """Return the value of a JSON text (RFC 8259) that has each member once.

    Raises:
        TooLarge: it has more than `MAXIMUM_VALUES` values.
        BadRequest: it is not JSON, or has NaN, or a member twice.
    """
    if has_too_many_values(content):
        raise TooLarge(f"The body has more than {MAXIMUM_VALUES} values")
    try:
        return parse_json(content.decode("utf-8"))
    except ValueError:
        raise BadRequest("The body is not valid JSON") from None


def parse_pairs(text: bytes) -> list[tuple[str, str]]:
    """Return the pairs of a query string or of an urlencoded form.

    Bytes that are not UTF-8 become lone surrogates, which `check_text` rejects.

    Raises:
        BadRequest: more than `MAXIMUM_PAIRS`.
    """
    try:
        return parse_qsl(
            text.decode("utf-8", "surrogateescape"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MAXIMUM_PAIRS,
        )
    except ValueError:
        raise BadRequest(f"More than {MAXIMUM_PAIRS} fields") from None
