"""Path, query and header parameters: the parser that reads them.

They are declared with `agentctl.interface.declarations`. The OpenAPI document is made from the
declarations, and `Parameters` compiles them once into converters. FastAPI's own parser is not used:
five typed parameters take half of the time of a small request in it, and its errors have another
shape.

The parser checks types only. The bounds are shown in the OpenAPI document and enforced by
`agentctl.service`, from the same constants of `agentctl.interface.requests`, so that local commands
have the same limits and the same messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from agentctl.auth import policy
from agentctl.errors import BadRequest, ValidationFailed
from agentctl.interface.declarations import Header, Query, find_declared
from agentctl.records.value_types import ValueType, WrongValue, compile_type

MAXIMUM_PAIRS = 100
"""Pairs in one query string or form. No regular client sends more."""

Headers = Iterable[tuple[bytes, bytes]]
_Declared = tuple[str, str, ValueType, bool]
"""The name of the parameter, its name in messages, the type of a value, and whether it repeats."""


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
        declared = [item for item in parameters if item.name not in path_parameters]
        self._renamed = [names for names in path_names.items() if names[0] != names[1]]
        self._defaults = {parameter.name: parameter.default for parameter in declared}
        self._query: dict[str, _Declared] = {}
        self._headers: dict[bytes, _Declared] = {}
        for parameter in declared:
            name, value_type = parameter.name, compile_type(parameter.annotation)
            header = find_declared(parameter.annotation, Header)
            if header is None:
                query = find_declared(parameter.annotation, Query)
                repeats = query is not None and query.max_items is not None
                one_value = value_type.item if repeats else value_type
                self._query[name] = (name, name, one_value, repeats)
            else:
                field = header.alias
                self._headers[field.lower().encode("ascii")] = (name, field, value_type, False)

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
        for name_in_path, argument in self._renamed:
            values[argument] = values.pop(name_in_path)
        error: ValidationFailed | None = None
        if query and self._query:
            error = _add_values(values, self._query, parse_pairs(query))
        if self._headers:
            error = error or _add_values(values, self._headers, headers)
        return values, error


def _add_values(
    values: dict[str, Any], declared: Mapping[Any, _Declared], pairs: Iterable[tuple[Any, Any]]
) -> ValidationFailed | None:
    """Add the values of the pairs whose key is declared, and return the first error."""
    error: ValidationFailed | None = None
    seen = set[str]()
    for key, text in pairs:
        if key not in declared:
            continue
        name, public_name, value_type, repeats = declared[key]
        if name in seen and not repeats:
            error = error or ValidationFailed(f"{public_name} is given more than once")
            continue
        try:
            value = value_type.parse(text if isinstance(text, str) else text.decode("latin-1"))
            values[name] = value if not repeats else (*values[name], value)
            seen.add(name)
        except WrongValue as wrong:
            error = error or ValidationFailed(f"{public_name} {wrong.problem}")
    return error


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
