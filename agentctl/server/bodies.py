"""Reading a request's body: under a cap, by its content type, strictly.

No multipart and no decompression: this server takes no files, and so has none of their faults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType
from agentctl.server.door import Call
from agentctl.server.parameters import pairs
from agentctl.server.shapes import Shape

__all__ = ["FORM", "JSON", "Body"]

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Body:
    """How the body of an operation is read.

    Args:
        record: the typed dictionary that it is to be (`requests`).
        form: whether an urlencoded form is taken beside JSON.
        optional: whether an empty body stands for an empty object.
    """

    def __init__(self, record: type, *, form: bool = False, optional: bool = False) -> None:
        self.record = record
        self.form = form
        self.optional = optional
        self.shape = Shape(record)

    async def read(self, call: Call) -> dict[str, Any]:
        """The fields that were sent.

        Raises:
            UnsupportedMediaType: another content type, or a content encoding.
            TooLarge: more than `limits.body_bytes`.
            BadRequest: not JSON, or several content types.
            ValidationFailed: a field that is unknown, missing, or not of its type.
        """
        parse = self._parser(call)
        content = await _received(call, call.caller.door.settings.limits.body_bytes)
        if self.optional and not content:
            return self.shape.of_json({})
        return parse(content)

    def _parser(self, call: Call) -> Callable[[bytes], dict[str, Any]]:
        for coding in ",".join(call.headers.getlist("content-encoding")).split(","):
            if coding.strip().lower() not in ("", "identity"):
                raise UnsupportedMediaType("A body with a content encoding is not supported")
        given, *others = call.headers.getlist("content-type") or [""]
        if others:
            raise BadRequest("The header field Content-Type is given more than once")
        media_type = given.partition(";")[0].strip().lower()
        if media_type == JSON:
            return lambda content: self.shape.of_json(_parsed(content))
        if media_type == FORM and self.form:
            return lambda content: self.shape.of_form(pairs(content))
        if not given and self.optional and call.headers.get("content-length", "0") == "0":
            return lambda content: self.shape.of_json(_parsed(content))
        names = f"{JSON} or {FORM}" if self.form else JSON
        raise UnsupportedMediaType(f"The body must be {names}")


async def _received(call: Call, limit: int) -> bytes:
    """The whole body, of at most `limit` bytes.

    Raises:
        TooLarge: more was announced or sent.
        ClientDisconnect: the client went away before its end.
    """
    announced = call.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise TooLarge(f"The body is larger than {limit} bytes")
    content = bytearray()
    async for part in call.stream():
        content += part
        if len(content) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes")
    return bytes(content)


def _parsed(content: bytes) -> object:
    """The JSON value that `content` spells, as RFC 8259 has it and with unique names.

    Raises:
        BadRequest: it spells none, repeats a name in an object, or has a number out of range.
    """
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refused,
            parse_float=_finite,
        )
    except (ValueError, RecursionError):
        raise BadRequest("The body is not valid JSON") from None


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(items)
    if len(value) != len(items):
        raise ValueError("a name occurs twice")
    return value


def _refused(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return value
