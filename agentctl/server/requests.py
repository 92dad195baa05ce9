"""Requests: their parameters and bodies, and the requests of operations that are built from them.

`Parameters` reads path, query and header parameters, which are declared with
`agentctl.interface.declarations`, and compiles the declarations once into converters. FastAPI
describes the parameters in the OpenAPI document and does not read them (decision 9).

`RequestBody` reads a body, with a limit of its size, as strict JSON or as a form. pydantic checks
its fields against the typed dictionary that the operation declares, and each error names the field.
There are no files and no decompression. `BodyFields` turns the fields of a body into the fields of
a request.

Types only are checked here. The bounds are shown in the OpenAPI document and enforced by
`agentctl.service`, from the same constants of `agentctl.interface.requests`, so that local commands
have the same limits and the same messages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData

from agentctl.auth import policy
from agentctl.errors import BadRequest, UnsupportedMediaType, ValidationFailed
from agentctl.interface.declarations import Header, Query, find_declared
from agentctl.interface.operations import OPERATIONS
from agentctl.interface.requests import ForkRequest, RetryRequest, RunRequest
from agentctl.interface.requests.administration import Grant
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.interface.responses import JSON
from agentctl.records.kinds import KINDS
from agentctl.records.text import find_json_problem
from agentctl.records.value_types import ValueType, WrongValue, compile_type, field_types
from agentctl.server.answers import Call
from agentctl.server.content import (
    FORM,
    MAXIMUM_PAIRS,
    MULTIPART,
    parse_json_content,
    parse_pairs,
    read_media_type,
)

Headers = Iterable[tuple[bytes, bytes]]

_Declared = tuple[str, str, ValueType, bool]
"""The name of the parameter, its name in messages, the type of a value, True if it may repeat."""

MEDIA_FIELDS = frozenset({"audio", "images", "videos"})
"""Fields of forms of other products that this server does not support (docs/contract.md "Runs")."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
_NO_MEDIA = "{name} is not supported: upload the file, and send its id in files"


class Parameters:
    """The parser for the parameters of one operation.

    Args:
        parameters: path parameters and, with a default, query parameters and header fields.
        path_names: the names of the path parameters, by their names in the path.
    """

    def __init__(
        self, parameters: Iterable[inspect.Parameter], path_names: Mapping[str, str]
    ) -> None:
        path_parameters = set(path_names.values())
        declared = [item for item in parameters if item.name not in path_parameters]
        self._renamed = [
            (path_name, name) for path_name, name in path_names.items() if path_name != name
        ]
        self._defaults = {parameter.name: parameter.default for parameter in declared}

        self._query: dict[str, _Declared] = {}
        self._headers: dict[bytes, _Declared] = {}
        for parameter in declared:
            name = parameter.name
            value_type = compile_type(parameter.annotation)
            header = find_declared(parameter.annotation, Header)
            if header is not None:
                field = header.alias
                self._headers[field.lower().encode("ascii")] = (name, field, value_type, False)
                continue

            query = find_declared(parameter.annotation, Query)
            repeats = query is not None and query.max_items is not None
            one_value = value_type.item if repeats else value_type
            self._query[name] = (name, name, one_value, repeats)

    def read(
        self, path: Mapping[str, str], query: bytes, headers: Headers
    ) -> tuple[dict[str, Any], ValidationFailed | None]:
        """Return the values of the parameters, and the first error in the query and the header.

        That error is returned and not raised, because a 404 for the named resource comes first.
        Its message names the parameter and never repeats the value.

        Raises:
            NotFound: a path parameter cannot be the name of anything.
            BadRequest: more than `MAXIMUM_PAIRS` in the query.
        """
        policy.check_path_params(path)
        values = {**self._defaults, **path}
        for path_name, name in self._renamed:
            values[name] = values.pop(path_name)

        error: ValidationFailed | None = None
        if query and self._query:
            error = _add_values(values, self._query, parse_pairs(query))
        if self._headers:
            error = error or _add_values(values, self._headers, headers)
        return values, error


def _add_values(
    values: dict[str, Any], declared: Mapping[Any, _Declared], pairs: Iterable[tuple[Any, Any]]
) -> ValidationFailed | None:
    """Add the values of the pairs whose key is declared, and return the first error.

    Args:
        pairs: of the query as texts, or of the header as bytes. A pair that is not declared is
            ignored: proxies and browsers add fields.
    """
    error: ValidationFailed | None = None
    seen_names = set[str]()
    for key, text in pairs:
        if key not in declared:
            continue

        name, public_name, value_type, repeats = declared[key]
        if name in seen_names and not repeats:
            error = error or ValidationFailed(f"{public_name} is given more than once")
            continue
        try:
            value = value_type.parse(text if isinstance(text, str) else text.decode("latin-1"))
            values[name] = value if not repeats else (*values[name], value)
            seen_names.add(name)
        except WrongValue as wrong:
            error = error or ValidationFailed(f"{public_name} {wrong.problem}")

    return error


class RequestBody:
    """The reader of the body of one operation.

    Args:
        record: the typed dictionary of the body (`interface.bodies`).
        form: True if a form, urlencoded or multipart, is accepted as well as JSON.
        optional: True if an empty body is an empty object.
    """

    def __init__(self, record: type, *, form: bool = False, optional: bool = False) -> None:
        self.record = record
        self.form = form
        self.optional = optional
        self._adapter = TypeAdapter[dict[str, Any]](record)
        self._fields = field_types(record)

    async def read(self, call: Call) -> dict[str, Any]:
        """Return the fields of the body.

        Raises:
            UnsupportedMediaType: another content type, or a content encoding.
            TooLarge: more than `limits.body_bytes`, or than `MAXIMUM_VALUES` values.
            BadRequest: not JSON, no form, or several content types.
            ValidationFailed: an unknown or missing field, a field of another type, or a file.
        """
        media_type = self._read_type(call)
        content = await call.body()
        if self.optional and not content:
            return self.check_json({})
        if media_type == JSON:
            return self.check_json(parse_json_content(content))
        if media_type == FORM:
            return self.check_form(parse_pairs(content))
        return self.check_form(await _parse_multipart(call, content))

    def check_json(self, body: object) -> dict[str, Any]:
        """Return the fields of a parsed JSON body; empty media fields are dropped.

        Raises:
            ValidationFailed: an unknown or missing field, or a field of another type.
        """
        fields = _drop_empty_media(body) if isinstance(body, dict) else body
        if isinstance(fields, dict):
            # Before pydantic, which would collect an error for each of thousands of names.
            self._refuse_unknown_fields(fields)
        try:
            self._adapter.validate_python(fields)
        except ValidationError as error:
            raise ValidationFailed(_describe_problem(error, self._fields)) from None

        checked = cast("dict[str, Any]", fields)
        for place, value in self._list_parts(checked):
            problem = find_json_problem(value)
            if problem:
                raise ValidationFailed(f"{place} {problem}")
        return checked

    def _refuse_unknown_fields(self, body: dict[str, Any]) -> None:
        """Refuse the first name, in the order of places, that no field of the body has.

        Raises:
            ValidationFailed: a field of the body, or of an object in one of its lists, is unknown.
        """
        unknown: list[tuple[int | str, ...]] = []
        names = body.keys() - self._fields.keys()
        if names:
            unknown.append((min(names),))

        for name, field in self._fields.items():
            if not field.is_list or not field.item.is_record:
                continue
            members = field_types(field.item.kind).keys()
            elements = body.get(name)
            for index, element in enumerate(elements if isinstance(elements, list) else ()):
                if isinstance(element, dict) and not element.keys() <= members:
                    unknown.append((name, index, min(element.keys() - members)))
                    break

        if unknown:
            raise ValidationFailed(_describe_unknown_field(min(unknown), self._fields))

    def _list_parts(self, body: dict[str, Any]) -> Iterator[tuple[str, object]]:
        """Yield the values of a body whose places errors name, also elements and their members."""
        for name, value in body.items():
            if not self._fields[name].is_list or value is None:
                yield name, value
                continue
            for index, element in enumerate(value):
                if not isinstance(element, dict):
                    yield f"{name}[{index}]", element
                    continue
                for member, inner in element.items():
                    yield f"{name}[{index}].{member}", inner

    def check_form(self, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        """Return the fields of a form; unknown fields are ignored.

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
                value = None if field.optional and not text else field.parse(text)
                values[name] = [*value] if isinstance(value, tuple) else value
            except WrongValue as wrong:
                raise ValidationFailed(f"{name} {wrong.problem}") from None
        return self.check_json(values)

    def _read_type(self, call: Call) -> str:
        """Return the media type of the body; UnsupportedMediaType if it is not accepted."""
        media_type = read_media_type(call)
        is_empty = not media_type and call.headers.get("content-length", "0") == "0"
        if is_empty and self.optional:
            return JSON
        if media_type == JSON or (self.form and media_type in (FORM, MULTIPART)):
            return media_type

        names = f"{JSON}, {FORM} or {MULTIPART}" if self.form else JSON
        raise UnsupportedMediaType(f"The body must be {names}")


def _describe_problem(error: ValidationError, fields: Mapping[str, ValueType]) -> str:
    """Return the sentence of the first problem: "scopes[0].scope must be a string".

    It never repeats a value.
    """
    problem = error.errors(include_url=False, include_input=False)[0]
    location = problem["loc"]
    place = _format_location(location)
    if problem["type"] == "missing":
        return f"{place} is required"
    return f"{place} must be {_describe_type(fields, location)}"


def _describe_unknown_field(location: Sequence[int | str], fields: Mapping[str, ValueType]) -> str:
    """Return the sentence for a field that a body, or an object in it, does not have.

    It has the name of the field only if that is a plain one.
    """
    *parent, name = location
    known = f"not known; known fields: {', '.join(_find_fields(fields, parent))}"
    if _PLAIN_NAME.fullmatch(str(name)):
        return f"{_format_location(location)} is {known}"
    return f"{_format_location(parent)} has a field that is {known}"


def _find_fields(
    fields: Mapping[str, ValueType], location: Sequence[int | str]
) -> Mapping[str, ValueType]:
    """Return the fields of the object at a location: of the body, or of an element of a list."""
    for step in location:
        if isinstance(step, str):
            element = fields[step].item
            fields = field_types(element.kind)
    return fields


def _describe_type(fields: Mapping[str, ValueType], location: Sequence[int | str]) -> str:
    """Return the words for the values that a location may have."""
    if not location:
        return "a JSON object"
    *parent, last = location
    if isinstance(last, int):
        *parent, name = parent
        return _find_fields(fields, parent)[str(name)].item.description
    return _find_fields(fields, parent)[last].description


def _format_location(location: Sequence[int | str]) -> str:
    """Return a place in a body: `scopes[0].scope`."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location]
    return "".join(steps).removeprefix(".") or "The body"


async def _parse_multipart(call: Call, content: bytes) -> list[tuple[str, str]]:
    """Return the fields of a multipart form.

    Raises:
        BadRequest: it is not valid, or has more than `MAXIMUM_PAIRS` parts.
        ValidationFailed: a part is a file.
    """

    async def stream() -> AsyncGenerator[bytes]:
        yield content

    form = await parse_form(
        call, stream(), max_files=MAXIMUM_PAIRS, max_part_size=max(len(content), 1)
    )
    pairs = list[tuple[str, str]]()
    try:
        for name, value in form.multi_items():
            if isinstance(value, str):
                pairs.append((name, value))
            elif value.filename or value.size:
                # Otherwise no file was chosen in a page.
                raise ValidationFailed(_NO_MEDIA.format(name=name))
    finally:
        await form.close()
    return pairs


async def parse_form(
    call: Call, stream: AsyncGenerator[bytes], *, max_files: int, max_part_size: int
) -> FormData:
    """Return the fields and files of a multipart form, which the caller closes.

    Args:
        max_part_size: maximum bytes of a field.

    Raises:
        BadRequest: it is not valid, or has more than `MAXIMUM_PAIRS` fields or `max_files` files.
    """
    from starlette.formparsers import MultiPartException, MultiPartParser

    parser = MultiPartParser(
        call.headers,
        stream,
        max_files=max_files,
        max_fields=MAXIMUM_PAIRS,
        max_part_size=max_part_size,
    )
    try:
        return await parser.parse()
    # Older releases of Starlette pass on the error of python_multipart, a ValueError.
    except (MultiPartException, KeyError, ValueError):
        raise BadRequest("The body is not a valid multipart form") from None


def _drop_empty_media(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without media fields and empty files; ValidationFailed for other media."""
    for name in MEDIA_FIELDS & body.keys():
        if body[name]:
            raise ValidationFailed(_NO_MEDIA.format(name=name))

    dropped_fields = set(MEDIA_FIELDS)
    if not body.get("files"):
        dropped_fields.add("files")
    return {name: value for name, value in body.items() if name not in dropped_fields}


def _read_component_id(body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the id of the component, from the field of the kind of the session."""
    component_id: str | None = None
    for kind, names in KINDS.items():
        id_of_kind = body.get(names.id_field)
        if kind == values["type"]:
            component_id = id_of_kind
        elif id_of_kind is not None:
            raise ValidationFailed(f"{names.id_field} cannot be used with type {values['type']}")
    return {**body, "component_id": component_id}


def _build_bodies() -> dict[str, RequestBody]:
    bodies: dict[str, RequestBody] = {}
    for declared in OPERATIONS.values():
        body = declared.body
        # The operations of each kind of component have the body of their method.
        if body is not None and declared.address not in bodies:
            reader = RequestBody(body.record, form=body.form, optional=body.optional)
            bodies[declared.address] = reader
    return bodies


BODIES = _build_bodies()
"""The declared bodies by family and method: `sessions.create`."""

Adapt = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Returns the fields of a request from the body and the other parameters."""

ADAPTERS: dict[str, Adapt] = {
    "sessions.create": _read_component_id,
    "sessions.update": lambda body, _: {"changes": body},
}
"""The bodies whose fields have other names than the fields of the request."""


class BodyFields:
    """The parameters of an operation that are fields of its body."""

    def __init__(self, parameters: Iterable[Parameter], adapt: Adapt | None = None) -> None:
        self._parameters = [
            (parameter.name, parameter.default, _choose_converter(parameter.annotation))
            for parameter in parameters
        ]
        self._adapt = adapt

    def read(self, body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the parameters; a field that is absent or null has its default.

        Raises:
            ValidationFailed: a field cannot be used with the other parameters.
        """
        if self._adapt is not None:
            body = self._adapt(body, values)

        arguments: dict[str, Any] = {}
        for name, default, convert in self._parameters:
            value = body.get(name)
            arguments[name] = default if value is None else convert(value)
        return arguments


def _choose_converter(annotation: Any) -> Callable[[Any], Any]:
    value_type = compile_type(annotation)
    if value_type.kind is not tuple:
        return lambda value: value
    if value_type.item.kind is Grant:
        return lambda value: tuple(Grant(**grant) for grant in value)
    return tuple


R = TypeVar("R", RunRequest, RetryRequest, ForkRequest)


def build_run_request(kind: type[R], body: Mapping[str, Any], key: str | None) -> R:
    """Build the request of a run, or of its repeat, from its checked body."""
    names = kind.__dataclass_fields__.keys() & body.keys()
    # A null means the default of the request.
    values = {name: body[name] for name in names if body[name] is not None}
    return kind(**values, idempotency_key=key)


def build_continue_request(body: Mapping[str, Any], idempotency_key: str | None) -> ContinueRequest:
    """Build the request that continues a run from its body, a checked `ContinueBody`."""
    return ContinueRequest(
        decisions=tuple(Ruling(**decision) for decision in body.get("decisions") or ()),
        background=body.get("background", False),
        dependencies=body.get("dependencies"),
        idempotency_key=idempotency_key,
    )
