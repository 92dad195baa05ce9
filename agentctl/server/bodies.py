"""Request bodies: size limit, content type, strict JSON, and the types of the fields.

`RequestBody` reads a body, checks its fields against a typed dictionary of `requests` and names the
field in each error. Types only: values are checked in `agentctl.service`, for HTTP and local
commands alike. There is no multipart and no decompression, because the server takes no
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, cast

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.light_dataclass import dataclass
from agentctl.records.strict import parse_json
from agentctl.records.value_types import WrongValue, compile_type, field_types
from agentctl.runtime.bounds import MAXIMUM_VALUES, has_too_many_values
from agentctl.server.parameters import parse_pairs
from agentctl.server.state import Call

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

MEDIA_FIELDS = frozenset({"audio", "files", "images", "videos"})
"""Fields of forms of other products that this server does not support (docs/contract.md "Runs")."""

Object = dict[str, Any] | None
"""A field that is a JSON object, or null."""


@dataclass(frozen=True, slots=True)
class Field:
    """The description and the bounds of a field, for the OpenAPI document; named as by pydantic.

    FastAPI builds the document with pydantic. A server imports neither until it is requested.
    """

    description: str | None = None
    default: Any = None
    ge: int | None = None
    le: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return the schema of the annotated type, as pydantic asks for it."""
        from pydantic import Field as StandardField

        given = {name: value for name, value in asdict(self).items() if value is not None}
        if "default" in given:
            # pydantic takes the default of a whole field only, which this is not.
            given["json_schema_extra"] = {"default": given.pop("default")}
        return handler.generate_schema(Annotated[source, StandardField(**given)])


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
        self._type = compile_type(record)
        self._fields = field_types(record)

    async def read(self, call: Call) -> dict[str, Any]:
        """Return the fields of the body.

        Raises:
            UnsupportedMediaType: another content type, or a content encoding.
            TooLarge: more than `limits.body_bytes`, or than `MAXIMUM_VALUES` values.
            BadRequest: not JSON, or several content types.
            ValidationFailed: an unknown or missing field, or a field of another type.
        """
        parse = self._choose_parser(call)
        content = await read_content(call)
        if self.optional and not content:
            return self.check_json({})
        return parse(content)

    def check_json(self, body: object) -> dict[str, Any]:
        """Return the fields of a parsed JSON body; empty media fields are dropped.

        Raises:
            ValidationFailed: an unknown or missing field, or a field of another type.
        """
        try:
            fields = _drop_empty_media(body) if isinstance(body, dict) else body
            return cast(dict[str, Any], self._type.check(fields))
        except WrongValue as wrong:
            name = wrong.path.removeprefix(".") or "The body"
            raise ValidationFailed(f"{name} {wrong.problem}") from None

    def check_form(self, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        """Return the fields of an urlencoded form; unknown fields are ignored.

        A nullable field is null if its value is empty, because a form cannot express null
        (docs/contract.md "Runs").

        Raises:
            ValidationFailed: a missing or repeated field, or a field of another type.
        """
        values = dict[str, Any]()
        for name, text in pairs:
            field = self._fields.get(name)
            if field is None:
                _drop_empty_media({name: text})
                continue
            if name in values:
                raise ValidationFailed(f"{name} is given more than once")
            try:
                values[name] = None if field.optional and not text else field.parse(text)
            except WrongValue as wrong:
                raise ValidationFailed(f"{name} {wrong.problem}") from None
        return self.check_json(values)

    def _choose_parser(self, call: Call) -> Callable[[bytes], dict[str, Any]]:
        content_type = read_content_type(call)
        media_type = content_type.partition(";")[0].strip().lower()
        is_empty = not content_type and call.headers.get("content-length", "0") == "0"
        if media_type == JSON or (is_empty and self.optional):
            return lambda content: self.check_json(_parse_json(content))
        if media_type == FORM and self.form:
            return lambda content: self.check_form(parse_pairs(content))
        names = f"{JSON} or {FORM}" if self.form else JSON
        raise UnsupportedMediaType(f"The body must be {names}")


async def read_json_body(call: Call) -> object:
    """Return the value of a JSON body, without a check of its fields.

    Raises:
        UnsupportedMediaType: another content type, or a content encoding.
        TooLarge: more than `limits.body_bytes`, or than `MAXIMUM_VALUES` values.
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
    content_type, *others = call.headers.getlist("content-type") or [""]
    if others:
        raise BadRequest("The header field Content-Type is given more than once")
    return content_type


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
    if has_too_many_values(content):
        raise TooLarge(f"The body has more than {MAXIMUM_VALUES} values")
    try:
        return parse_json(content.decode("utf-8"))
    except ValueError:
        raise BadRequest("The body is not valid JSON") from None


def _drop_empty_media(body: Mapping[str, Any]) -> dict[str, Any]:
    for name in MEDIA_FIELDS & body.keys():
        if body[name]:
            raise ValidationFailed(f"{name} is not supported: runs take text only")
    return {name: value for name, value in body.items() if name not in MEDIA_FIELDS}
