"""Request bodies: size limit, content type, strict JSON, and the types of the fields.

`RequestBody` reads a body, `BodySchema` checks its fields against a typed dictionary of `requests`
and names the field in each error. Types only: values are checked in `agentctl.service`, for HTTP
and local commands alike. There is no multipart and no decompression, because the server takes no
files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import is_typeddict

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.records.validation import INTEGERS, check_json, check_text
from agentctl.server.parameters import parse_bool, parse_integer, parse_pairs, strip_none
from agentctl.server.state import Call

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

MEDIA_FIELDS = frozenset({"audio", "files", "images", "videos"})
"""Fields of forms of other products that this server does not support (docs/contract.md "Runs")."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)


class _Field(NamedTuple):
    """The type of a field; `item` is the schema of the objects of an array."""

    kind: Any
    nullable: bool
    required: bool
    item: BodySchema | None = None


class BodySchema:
    """The fields of one kind of body.

    Args:
        body: a typed dictionary of `requests`.
    """

    def __init__(self, body: type) -> None:
        hints = get_type_hints(body, include_extras=True)
        self.fields = {name: _compile_field(hint) for name, hint in hints.items()}
        self.names = ", ".join(self.fields)

    def check_json(self, body: object, at: str = "") -> dict[str, Any]:
        """Return the fields of a parsed JSON body; empty media fields are dropped.

        Args:
            body: the parsed value.
            at: its path inside the whole body, such as `scopes[0]`; empty for the body itself.

        Raises:
            ValidationFailed: an unknown or missing field, or a field of another type.
        """
        if not isinstance(body, dict):
            raise ValidationFailed(f"{at or 'The body'} must be a JSON object")
        given = body if at else _drop_empty_media(body)
        for name in given.keys() - self.fields.keys():
            shown = (
                _join_path(at, name)
                if _PLAIN_NAME.fullmatch(name)
                else f"A field of {at or 'the body'}"
            )
            raise ValidationFailed(f"{shown} is not known; known fields: {self.names}")
        return self._check_fields(given, at)

    def check_form(self, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        """Return the fields of an urlencoded form; unknown fields are ignored.

        A nullable field is null if its value is empty, because a form cannot express null
        (docs/contract.md "Runs").

        Raises:
            ValidationFailed: a missing or repeated field, or a field of another type.
        """
        given = dict[str, Any]()
        for name, text in pairs:
            field = self.fields.get(name)
            if field is None:
                _drop_empty_media({name: text})
                continue
            if name in given:
                raise ValidationFailed(f"{name} is given more than once")
            given[name] = _convert_form_value(name, field, text)
        return self._check_fields(given)

    def _check_fields(self, given: Mapping[str, Any], at: str = "") -> dict[str, Any]:
        for name, field in self.fields.items():
            if name in given:
                _check_field(_join_path(at, name), field, given[name])
            elif field.required:
                raise ValidationFailed(f"{_join_path(at, name)} is required")
        return dict(given)


def _join_path(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _drop_empty_media(body: Mapping[str, Any]) -> dict[str, Any]:
    for name in MEDIA_FIELDS & body.keys():
        if body[name]:
            raise ValidationFailed(f"{name} is not supported: runs take text only")
    return {name: value for name, value in body.items() if name not in MEDIA_FIELDS}


def _convert_form_value(name: str, field: _Field, text: str) -> Any:
    if field.nullable and not text:
        return None
    convert, expected = _FORM_CONVERTERS.get(field.kind, (str, "text"))
    try:
        return convert(text)
    except ValueError:
        raise ValidationFailed(f"{name} must be {expected}") from None


def _compile_field(hint: Any) -> _Field:
    required = get_origin(hint) is Required
    if get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    plain = strip_none(hint)
    kind = get_origin(plain) or plain
    items = [BodySchema(item) for item in get_args(plain) if kind is list and is_typeddict(item)]
    return _Field(kind, plain is not hint, required, *items)


def _check_field(name: str, field: _Field, value: object) -> None:
    if value is None and field.nullable:
        return
    if field.item is not None:
        _check_objects(name, field.item, value)
    else:
        _CHECKS[field.kind](name, value)


def _check_objects(name: str, schema: BodySchema, value: object) -> None:
    if not isinstance(value, list):
        raise ValidationFailed(f"{name} must be an array of objects")
    for index, item in enumerate(value):
        schema.check_json(item, f"{name}[{index}]")


def _check_string(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValidationFailed(f"{name} must be a string")
    check_text(name, value)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValidationFailed(f"{name} must be true or false")


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in INTEGERS:
        raise ValidationFailed(f"{name} must be an integer")


def _check_list(name: str, value: object) -> None:
    if not isinstance(value, list):
        raise ValidationFailed(f"{name} must be an array of strings")
    for item in value:
        _check_string(name, item)


def _check_object(name: str, value: object) -> None:
    if not isinstance(value, dict):
        raise ValidationFailed(f"{name} must be an object")
    check_json(name, value)


_CHECKS: dict[Any, Callable[[str, object], None]] = {
    Literal: _check_string,
    str: _check_string,
    bool: _check_bool,
    int: _check_integer,
    list: _check_list,
    dict: _check_object,
}


class RequestBody:
    """The reader of the body of one operation.

    Args:
        record: the typed dictionary of the body (`requests`).
        form: True if an urlencoded form is accepted as well as JSON.
        optional: True if an empty body is an empty object.
    """

    def __init__(self, record: type, *, form: bool = False, optional: bool = False) -> None:
        self.record = record
        self.form = form
        self.optional = optional
        self.schema = BodySchema(record)

    async def read(self, call: Call) -> dict[str, Any]:
        """Return the fields of the body.

        Raises:
            UnsupportedMediaType: another content type, or a content encoding.
            TooLarge: more than `limits.body_bytes`.
            BadRequest: not JSON, or several content types.
            ValidationFailed: an unknown or missing field, or a field of another type.
        """
        parse = self._choose_parser(call)
        content = await read_content(call)
        if self.optional and not content:
            return self.schema.check_json({})
        return parse(content)

    def _choose_parser(self, call: Call) -> Callable[[bytes], dict[str, Any]]:
        given = read_content_type(call)
        media_type = given.partition(";")[0].strip().lower()
        if media_type == JSON:
            return lambda content: self.schema.check_json(_parse_json(content))
        if media_type == FORM and self.form:
            return lambda content: self.schema.check_form(parse_pairs(content))
        if not given and self.optional and call.headers.get("content-length", "0") == "0":
            return lambda content: self.schema.check_json(_parse_json(content))
        names = f"{JSON} or {FORM}" if self.form else JSON
        raise UnsupportedMediaType(f"The body must be {names}")


async def read_json_body(call: Call) -> object:
    """Return the value of a JSON body, without a check of its fields.

    Raises:
        UnsupportedMediaType: another content type, or a content encoding.
        TooLarge: more than `limits.body_bytes`.
        BadRequest: not JSON, or several content types.
    """
    if read_content_type(call).partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaType(f"The body must be {JSON}")
    return _parse_json(await read_content(call))


def read_content_type(call: Call) -> str:
    """Return the header field Content-Type of a body without a content encoding.

    Raises:
        UnsupportedMediaType: the body has a content encoding.
        BadRequest: there are several fields.
    """
    for coding in ",".join(call.headers.getlist("content-encoding")).split(","):
        if coding.strip().lower() not in ("", "identity"):
            raise UnsupportedMediaType("A body with a content encoding is not supported")
    given, *others = call.headers.getlist("content-type") or [""]
    if others:
        raise BadRequest("The header field Content-Type is given more than once")
    return given


async def read_content(call: Call) -> bytes:
    """Return the bytes of the whole body.

    Raises:
        TooLarge: the announced length or the received bytes exceed `limits.body_bytes`.
        ClientDisconnect: the client disconnected before the end of the body.
    """
    limit = call.caller.app_state.settings.limits.body_bytes
    announced = call.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise TooLarge(f"The body is larger than {limit} bytes")
    content = bytearray()
    async for part in call.stream():
        content += part
        if len(content) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes")
    return bytes(content)


def _parse_json(content: bytes) -> object:
    """Parse JSON as RFC 8259 defines it, with unique names in each object.

    Raises:
        BadRequest: not JSON, a repeated name in an object, or a number that is out of range.
    """
    try:
        return _load_json(content.decode("utf-8"))
    except ValueError:
        raise BadRequest("The body is not valid JSON") from None


def _load_json(text: str) -> object:
    try:
        return json.loads(
            text,
            object_pairs_hook=_reject_repeated_names,
            parse_constant=_reject_constant,
            parse_float=_parse_finite,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject_repeated_names(items: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(items)
    if len(value) != len(items):
        raise ValueError("a name occurs twice")
    return value


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return value


_FORM_CONVERTERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (parse_bool, "true or false"),
    int: (parse_integer, "an integer"),
    dict: (_load_json, "a JSON object"),
}
"""Converters of form values that are not text, and the words of their error messages."""
