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
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from agentctl.auth import policy
from agentctl.declarations import Header, find_declared
from agentctl.errors import BadRequest, ValidationFailed
from agentctl.records.value_types import ValueType, WrongValue, compile_type

MAXIMUM_PAIRS = 100
"""Pairs in one query string or form. No regular client sends more."""

Headers = Iterable[tuple[bytes, bytes]]


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
        self._query: dict[str, ValueType] = {}
        self._headers: dict[bytes, tuple[str, str, ValueType]] = {}
        for parameter in declared:
            name, value_type = parameter.name, compile_type(parameter.annotation)
            header = find_declared(parameter.annotation, Header)
            if header is not None:
                field = header.alias
                self._headers[field.lower().encode("ascii")] = (name, field, value_type)
            else:
                self._query[name] = value_type

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
            name, shown, value_type = self._headers[field]
            try:
                values[name] = _parse_once(shown, content.decode("latin-1"), value_type, seen)
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
                values[name] = _parse_once(name, text, self._query[name], seen)
            except ValidationFailed as error:
                first_error = first_error or error
        return first_error


def _parse_once(name: str, text: str, value_type: ValueType, seen: set[str]) -> Any:
    if name in seen:
        raise ValidationFailed(f"{name} is given more than once")
    seen.add(name)
    try:
        return value_type.parse(text)
    except WrongValue as wrong:
        raise ValidationFailed(f"{name} {wrong.problem}") from None


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
