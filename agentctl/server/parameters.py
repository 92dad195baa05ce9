"""Path, query and header parameters: the parser that reads them.

They are declared with `agentctl.declarations`. The OpenAPI document is made from the declarations,
and `Parameters` compiles them once into converters. FastAPI's own parser is not used: five typed
parameters take half of the time of a small request in it, and its errors have another shape.

The parser checks types only. The bounds are shown in the OpenAPI document and enforced by
`agentctl.service`, from the same constants of `agentctl.requests`, so that local commands have
the same limits and the same messages.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import parse_qsl

from agentctl.auth import policy
from agentctl.declarations import Header
from agentctl.errors import BadRequest, ValidationFailed
from agentctl.records.times import ParsedTimestamp, parse_rfc3339
from agentctl.records.validation import check_text

MAXIMUM_PAIRS = 100
"""Pairs in one query string or form. No regular client sends more."""

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

Convert = Callable[[str], Any]
Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A compiled query parameter or header field.

    Attributes:
        convert: converts the text; raises ValueError if the text is not `expected`.
        expected: description of valid texts, for the error message.
        header: name of the header field, None for a query parameter.
    """

    convert: Convert
    expected: str
    header: str | None = None


class Parameters:
    """The parser for the parameters of one operation.

    Args:
        parameters: path parameters and, with a default, query parameters and header fields.
        path_names: the path parameters: the name in the path, and that of the parameter.
    """

    def __init__(
        self, parameters: Iterable[inspect.Parameter], path_names: Mapping[str, str]
    ) -> None:
        path_parameters = set(path_names.values())
        declared = [each for each in parameters if each.name not in path_parameters]
        self._renamed = [names for names in path_names.items() if names[0] != names[1]]
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
        """Return the values of the parameters, and the first error in the query and the header.

        That error is returned and not raised, because a 404 for the named resource comes first.
        Its message names the parameter and never repeats the value.

        Args:
            path: path parameters as they were matched.
            query: the raw query string.
            headers: the raw header fields, names in lower case.

        Raises:
            NotFound: a path parameter cannot be the name of anything.
            BadRequest: more than `MAXIMUM_PAIRS` in the query.
        """
        policy.check_path_params(path)
        values = {**self._defaults, **path}
        for given, argument in self._renamed:
            values[argument] = values.pop(given)
        error = self._add_query(values, query) if query and self._query else None
        if self._headers:
            error = error or self._add_headers(values, headers)
        return values, error

    def _add_headers(self, values: dict[str, Any], headers: Headers) -> ValidationFailed | None:
        first_error: ValidationFailed | None = None
        seen = set[str]()
        for field, content in headers:
            if field not in self._headers:
                continue
            name, parameter = self._headers[field]
            try:
                shown = parameter.header or name
                values[name] = _convert_once(shown, content.decode("latin-1"), parameter, seen)
            except ValidationFailed as error:
                first_error = first_error or error
        return first_error

    def _add_query(self, values: dict[str, Any], query: bytes) -> ValidationFailed | None:
        first_error: ValidationFailed | None = None
        seen = set[str]()
        for name, text in parse_pairs(query):
            if name not in self._query:
                continue
            try:
                values[name] = _convert_once(name, text, self._query[name], seen)
            except ValidationFailed as error:
                first_error = first_error or error
        return first_error


def _convert_once(name: str, text: str, parameter: _Parameter, seen: set[str]) -> Any:
    if name in seen:
        raise ValidationFailed(f"{name} is given more than once")
    seen.add(name)
    try:
        return parameter.convert(check_text(name, text))
    except ValueError:
        raise ValidationFailed(f"{name} must be {parameter.expected}") from None


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


def parse_bool(text: str) -> bool:
    """Return the truth value that `text` spells: true, false, 1 or 0, in any case.

    Raises:
        ValueError: another text.
    """
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError from None


def parse_integer(text: str) -> int:
    """Return the integer that `text` spells, of up to 18 digits.

    Raises:
        ValueError: another text.
    """
    if _INTEGER.fullmatch(text) is None:
        raise ValueError
    return int(text)


def _compile_parameter(annotation: Any) -> _Parameter:
    """Return the converter of a declared type: text, number, boolean, time, or one of some words.

    Raises:
        TypeError: another type.
    """
    if get_origin(annotation) is Annotated:
        annotation, declared, *_ = get_args(annotation)
        if isinstance(declared, Header):
            return replace(_compile_parameter(annotation), header=declared.alias)
    plain = strip_none(annotation)
    if get_origin(plain) is Literal:
        return _compile_choice(get_args(plain))
    if plain is str:
        return _Parameter(str, "text")
    if plain is bool:
        return _Parameter(parse_bool, "true or false")
    if plain == tuple[str, ...]:
        return _Parameter(_parse_words, "text")
    if plain == ParsedTimestamp:
        return _Parameter(parse_rfc3339, "an RFC 3339 date-time, such as 2026-11-20T08:18:10Z")
    if plain is int:
        return _Parameter(parse_integer, "an integer")
    if plain is float:
        return _Parameter(_parse_float, "a number")
    raise TypeError(f"unsupported type of a query parameter: {plain!r}")


def strip_none(annotation: Any) -> Any:
    """Return `X` for `X | None`, and any other annotation unchanged."""
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


def _parse_words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _parse_float(text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError
    return float(text)
