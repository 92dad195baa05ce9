"""The validation of tables by pydantic, with errors that name the place and the allowed values."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import ErrorDetails

from agentctl.config.given_tables import GivenTables
from agentctl.config.places import Place
from agentctl.config.tables import ENTRY_TABLES, list_sections
from agentctl.config.types import PROBLEM
from agentctl.records.schema_words import KEY_STEP, Schema, describe_values, find_part, show_value
from agentctl.records.text import UNSTORABLE, is_storable, suggest_name

_RULES = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""Types of the error for a key that is not known: of the whole file, and of a table."""

_NO_TABLE = "dataclass_type"
"""Type of the error for a value that must be a table."""


@lru_cache(maxsize=16)
def _build_model(names: frozenset[str]) -> type[BaseModel]:
    """Return the model of a file: a field for each table, and a tuple for each list of tables.

    Args:
        names: the names of the tables; any other name is refused.
    """
    fields: dict[str, Any] = {
        name: (table, Field(default_factory=table))
        for name, table in list_sections().items()
        if name in names
    }
    for name, entry in ENTRY_TABLES.items():
        if name in names:
            fields[name] = (tuple[entry, ...], ())  # type: ignore[valid-type]
    return create_model("Tables", __config__=_RULES, **fields)


@lru_cache(maxsize=1)
def build_schema() -> Schema:
    """Return the JSON Schema of a file, with the words for wrong values as descriptions."""
    return _build_model(frozenset([*list_sections(), *ENTRY_TABLES])).model_json_schema()


def validate_tables(given: GivenTables, base: Path) -> dict[str, Any]:
    """Return the settings of each table `[name]`, and of each `[[name]]` a tuple of its entries.

    Args:
        base: the folder of relative paths.

    Raises:
        InvalidConfiguration: the first mistake.
    """
    defaults: dict[str, Any] = {name: table() for name, table in list_sections().items()}
    defaults |= dict.fromkeys(ENTRY_TABLES, ())

    # pydantic takes longer to build the validators of all tables than to validate a file: most
    # files have few tables.
    model = _build_model(frozenset(defaults.keys() & given.values.keys()))
    try:
        return defaults | dict(model.model_validate_json(_write_json(given.values), context=base))
    except ValidationError as invalid:
        _refuse_tables(given, invalid)


def _refuse_tables(given: GivenTables, invalid: ValidationError) -> NoReturn:
    """Raise InvalidConfiguration for the mistake that a user should correct first."""
    schema = build_schema()
    errors = invalid.errors(include_url=False)
    # A key with a wrong name may be the missing key.
    unknown_keys = (error for error in errors if error["type"] in _UNKNOWN_KEY)
    error = next(unknown_keys, errors[0])

    path = error["loc"]
    if path[-1:] == (KEY_STEP,):
        path = path[:-1]
    # An element that is no table: the words are about its list.
    if error["type"] == _NO_TABLE and isinstance(path[-1], int):
        path = path[:-1]

    place = given.find_place(path)
    if error["type"] == "json_invalid":
        place.refuse("has lists or tables that are nested too deeply")

    if error["type"] in _UNKNOWN_KEY:
        known_names = find_part(schema, path[:-1])["properties"]
        similar_name = suggest_name(str(path[-1]), known_names)
        guess = f"; it has {', '.join(known_names)}"
        if similar_name:
            guess = f', did you mean "{similar_name}"?'
        place.refuse(f"this version has no such key{guess}", hint="correct or remove the key")

    if len(path) == 1:
        name = path[0]
        if name in ENTRY_TABLES:
            place.refuse(f"must be a list of tables, each written [[{name}]]")
        place.refuse(f"must be a table, written [{name}]")

    if error["type"] == _NO_TABLE:
        words = describe_values(find_part(schema, path), schema["$defs"])
        place.refuse(f"must be {words}")
    place.refuse(_describe_error(error, schema))


def validate_value(table: type, name: str, value: str | list[str], place: Place, base: Path) -> Any:
    """Return the value of one field of a table.

    Args:
        value: a text, or several for a list.
        place: its place for an error.
        base: the folder of relative paths.

    Raises:
        InvalidConfiguration: the value is not allowed.
    """
    if not all(map(is_storable, value)):
        place.refuse(UNSTORABLE)

    adapter = TypeAdapter[Any](get_type_hints(table, include_extras=True)[name], config=_RULES)
    try:
        return adapter.validate_json(_write_json(value), context=base)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False)[0]
        place.refuse(_describe_error(error, adapter.json_schema()))


def _write_json(value: object) -> str:
    # In strict mode pydantic takes a list for a tuple, a table for a class and a text for a path
    # only from JSON, which has no other form of them.
    return json.dumps(value)


def _describe_error(error: ErrorDetails, schema: Schema) -> str:
    if error["type"] == PROBLEM:
        return error["msg"]

    definitions = schema.get("$defs", {})
    part = find_part(schema, error["loc"])
    words = describe_values(part, definitions)
    if error["type"] == "missing":
        return f"is missing; it must be {words}"
    return f"must be {words}, not {show_value(error['input'], part, definitions)}"
