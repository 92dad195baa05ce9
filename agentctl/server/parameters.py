"""The one parser of path, query and header parameters.

An endpoint declares its parameters as FastAPI has them (`Annotated[int, Query(ge=1)]`), which
makes the OpenAPI document. The same declarations are compiled here, once, into converters: five
parameters through FastAPI's own machinery cost half of a small request, and its refusals have
another shape than ours. So there is one source, and one way for hot and cold routes. Only types
are checked here; what a value may be is decided behind the port, for every door in the same words.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi.params import Header
from starlette.requests import Request
from typing_extensions import TypeAliasType

from agentctl.auth import policy
from agentctl.errors import BadRequest, ValidationFailed
from agentctl.records.times import ParsedTimestamp, parse_rfc3339
from agentctl.records.validation import check_text

__all__ = ["Parameters", "parse_bool", "parse_integer", "parse_pairs", "strip_none"]

MAXIMUM_PAIRS = 100
"""Pairs in one query string or form; more is no request that anybody writes."""

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

Convert = Callable[[str], Any]
Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One query parameter or header field. `convert` raises ValueError for what is not `expected`.

    `header` is the name of the header field, None for a query parameter.
    """

    convert: Convert
    expected: str
    header: str | None = None


class Parameters:
    """Reads what an endpoint declares from a request.

    Args:
        endpoint: a function whose first parameter is the call, and whose others are path
            parameters, by the names in `path_names`, or query parameters and header fields with
            a default.
    """

    def __init__(self, endpoint: Callable[..., Any], path_names: frozenset[str]) -> None:
        declared = [
            parameter
            for parameter in inspect.signature(endpoint, eval_str=True).parameters.values()
            if parameter.name not in path_names and not _is_call(parameter.annotation)
        ]
        self._defaults = {parameter.name: parameter.default for parameter in declared}
        compiled = {
            parameter.name: _compile_parameter(parameter.annotation) for parameter in declared
        }
        self._query = {name: one for name, one in compiled.items() if one.header is None}
        self._headers = {
            one.header.lower().encode("ascii"): (name, one)
            for name, one in compiled.items()
            if one.header is not None
        }

    def read(
        self, path: Mapping[str, str], query: bytes, headers: Headers
    ) -> tuple[dict[str, Any], ValidationFailed | None]:
        """The arguments of the endpoint, and what is wrong with the query or a header field.

        A refusal of them is not raised: what the request names may not be there, and that comes
        first. It names the parameter, never what was given for it.

        Args:
            path: path parameters as they were matched.
            query: the query string as it was sent.
            headers: the header fields as they were sent, names in lower case.

        Raises:
            NotFound: a path parameter is no text that can name anything.
            BadRequest: more than `MAXIMUM_PAIRS` in the query.
        """
        policy.check_path_params(path)
        values = {**self._defaults, **path}
        refusal = self._add(values, query) if query and self._query else None
        if self._headers:
            refusal = refusal or self._add_headers(values, headers)
        return values, refusal

    def _add_headers(self, values: dict[str, Any], headers: Headers) -> ValidationFailed | None:
        """Put the header fields in; the first refusal, if any, leaves its default."""
        refusal: ValidationFailed | None = None
        seen = set[str]()
        for field, content in headers:
            if field not in self._headers:
                continue
            name, parameter = self._headers[field]
            try:
                shown = parameter.header or name
                values[name] = _convert_once(shown, content.decode("latin-1"), parameter, seen)
            except ValidationFailed as error:
                refusal = refusal or error
        return refusal

    def _add(self, values: dict[str, Any], query: bytes) -> ValidationFailed | None:
        """Put the query's values in; the first refusal, if any, leaves its default."""
        refusal: ValidationFailed | None = None
        seen = set[str]()
        for name, text in parse_pairs(query):
            if name not in self._query:
                continue
            try:
                values[name] = _convert_once(name, text, self._query[name], seen)
            except ValidationFailed as error:
                refusal = refusal or error
        return refusal


def _convert_once(name: str, text: str, parameter: _Parameter, seen: set[str]) -> Any:
    """The value of a parameter, which is given for the first time."""
    if name in seen:
        raise ValidationFailed(f"{name} is given more than once")
    seen.add(name)
    try:
        return parameter.convert(check_text(name, text))
    except ValueError:
        raise ValidationFailed(f"{name} must be {parameter.expected}") from None


def parse_pairs(text: bytes) -> list[tuple[str, str]]:
    """The pairs of a query string or of an urlencoded form.

    What is not UTF-8 becomes lone surrogates, which no text parameter takes.

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


def parse_bool(text: str) -> bool:
    """The truth value that `text` spells.

    Raises:
        ValueError: it spells none.
    """
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError from None


def parse_integer(text: str) -> int:
    """The integer that `text` spells, of up to 18 digits.

    Raises:
        ValueError: it spells none.
    """
    if _INTEGER.fullmatch(text) is None:
        raise ValueError
    return int(text)


def _is_call(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Request)


def _compile_parameter(annotation: Any) -> _Parameter:
    """The converter of a declared type: text, number, flag, time, or one of some words."""
    if get_origin(annotation) is Annotated:
        annotation, declared, *_ = get_args(annotation)
        if isinstance(declared, Header):
            return replace(_compile_parameter(annotation), header=declared.alias)
    plain = strip_none(annotation)
    if isinstance(plain, TypeAliasType):
        plain = plain.__value__
    if get_origin(plain) is Literal:
        return _compile_choice(get_args(plain))
    if plain is str:
        return _Parameter(str, "text")
    if plain is bool:
        return _Parameter(parse_bool, "true or false")
    if plain == ParsedTimestamp:
        return _Parameter(parse_rfc3339, "an RFC 3339 date-time, such as 2026-11-20T08:18:10Z")
    if plain is int:
        return _Parameter(parse_integer, "an integer")
    if plain is float:
        return _Parameter(_parse_float, "a number")
    raise TypeError(f"no query parameter can be of type {plain!r}")


def strip_none(annotation: Any) -> Any:
    if get_origin(annotation) in (types.UnionType, Union):
        (annotation,) = [part for part in get_args(annotation) if part is not type(None)]
    return annotation


def _compile_choice(words: tuple[str, ...]) -> _Parameter:
    allowed = frozenset(words)

    def convert(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return _Parameter(convert, f"one of: {', '.join(words)}")


def _parse_float(text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError
    return float(text)
