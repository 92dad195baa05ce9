"""Types and rules of configuration values, and the conversion of values from TOML and variables.

The descriptions of rules are part of error messages and of the reference page.
"""

from __future__ import annotations

import math
import os
import re
import types
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from agentctl.config.places import Place, join_quoted
from agentctl.records.text import is_storable


class Range(NamedTuple):
    """A rule for a number: from `low` to `high`, inclusive."""

    low: float
    high: float

    def allows(self, value: object) -> bool:
        """Return True if `value` is in the range; NaN never is."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def description(self) -> str:
        """The bounds, to follow "a number"."""
        return f"from {self.low} to {self.high}"


class Form(NamedTuple):
    """A rule for a text: `pattern` matches it completely; `description` is for messages."""

    pattern: str
    description: str

    def allows(self, value: object) -> bool:
        """Return True if `value` is such a text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


class Reference(NamedTuple):
    """A rule for the id of an entry of another table, checked after all tables are read."""

    first: str
    second: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(table for table in self if table)

    @property
    def description(self) -> str:
        """The tables in the notation of the file."""
        return " or ".join(f"[[{table}]]" for table in self.tables)


class Secret(NamedTuple):
    """A rule for a value that no message repeats; `config show` hides a `masked` one too."""

    masked: bool = True


class JsonTable(NamedTuple):
    """A rule for a table with free keys: all of its values are JSON values."""

    description: str = "a table of texts, numbers, true and false, lists and tables"

    def allows(self, value: object) -> bool:
        """Return True if `value` can be written as JSON: no dates, no NaN, nested at most 64."""
        return isinstance(value, dict) and _is_json(value)


class Repeats(NamedTuple):
    """A rule for a list: the same element may occur more than once."""


Rule = Range | Form | JsonTable | Reference | Secret | Repeats


_SHOWN = 40
_MAXIMUM_DEPTH = 64
_INTEGERS = range(-(2**63), 2**63)
_key_types: dict[type, dict[str, ValueType]] = {}


class ValueType(NamedTuple):
    """The type of a value, with its rules."""

    type: object
    rules: tuple[Rule, ...] = ()
    optional: bool = False

    @property
    def item(self) -> ValueType:
        """The type of the elements of a list, or of the values of a table with free names."""
        arguments = get_args(self.type)
        return _value_type(arguments[-1] if self.is_table else arguments[0])

    @property
    def name(self) -> ValueType:
        """The type of the names of a table with free names."""
        return _value_type(get_args(self.type)[0])

    @property
    def is_list(self) -> bool:
        """True for a list."""
        return get_origin(self.type) is tuple

    @property
    def is_table(self) -> bool:
        """True for a table with free names, such as the headers of a server."""
        is_json = any(isinstance(rule, JsonTable) for rule in self.rules)
        return get_origin(self.type) is dict and not is_json

    @property
    def secret(self) -> bool:
        """True if a message must not repeat the value."""
        return any(isinstance(rule, Secret) for rule in self.rules)

    @property
    def masked(self) -> bool:
        """True if `config show` must not show the value."""
        return any(isinstance(rule, Secret) and rule.masked for rule in self.rules)

    @property
    def reference(self) -> Reference | None:
        """The rule of a reference to other tables, or None."""
        return next((rule for rule in self.rules if isinstance(rule, Reference)), None)

    @property
    def description(self) -> str:
        """The allowed values, for messages."""
        if self.reference is not None:
            return f"the id of an entry of {self.reference.description}"
        for rule in self.rules:
            if isinstance(rule, Form | JsonTable):
                return rule.description
            if isinstance(rule, Range):
                return f"{_describe_type(self)} {rule.description}"
        return _describe_type(self)


def key_types(table: type) -> dict[str, ValueType]:
    """Return the types of the keys of a settings class, in order."""
    if table not in _key_types:
        hints = get_type_hints(table, include_extras=True)
        _key_types[table] = {name: _value_type(hint) for name, hint in hints.items()}
    return _key_types[table]


def convert_value(value: object, value_type: ValueType, place: Place, base: Path) -> object:
    """Check a TOML value and convert it to a value of the settings.

    Args:
        value: the parsed value.
        value_type: the type of the key.
        place: the key, for the error.
        base: the folder of relative paths.

    Raises:
        InvalidConfiguration: the value has another type or breaks a rule.
    """
    if value_type.is_list:
        return _convert_list(value, value_type, place, base)
    if value_type.is_table:
        return _convert_table(value, value_type, place, base)
    if value_type.type is Path:
        return _convert_path(value, value_type, place, base)
    if not _is_of_type(value, value_type.type) or not all(
        rule.allows(value)
        for rule in value_type.rules
        if isinstance(rule, Range | Form | JsonTable)
    ):
        place.refuse(f"must be {value_type.description}, not {_show_value(value, value_type)}")
    if isinstance(value, str) and not is_storable(value):
        place.refuse("must not contain a NUL character or a lone surrogate")
    return value


def parse_variable(text: str, value_type: ValueType) -> object:
    """Parse the text of an environment variable as a TOML value.

    Texts and paths are used unchanged. Malformed values stay text, so that `convert_value` rejects
    them with the same message as in a file.
    """
    if value_type.type is Path or get_origin(value_type.type) is Literal or value_type.type is str:
        return text
    from tomllib import loads

    try:
        parsed = loads(f"value = {text.lower() if value_type.type is bool else text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def quote_text(text: str) -> str:
    """Quote `text` on one line, cut at 40 characters, with control characters escaped."""
    import json

    quoted = json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "…", ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in quoted)


def _value_type(hint: object) -> ValueType:
    rules: tuple[Rule, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        rules = tuple(extra for extra in extras if isinstance(extra, Rule))
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(part for part in get_args(hint) if part is not type(None))
        return ValueType(inner, rules, optional=True)
    return ValueType(hint, rules)


def _convert_list(
    value: object, value_type: ValueType, place: Place, base: Path
) -> tuple[object, ...]:
    item = value_type.item
    if not isinstance(value, list):
        place.refuse(f"must be {value_type.description}, not {_show_value(value, item)}")
    converted = tuple(
        convert_value(part, item, place.item(f"[{index}]"), base)
        for index, part in enumerate(value)
    )
    if any(isinstance(rule, Repeats) for rule in value_type.rules):
        return converted
    for index, part in enumerate(converted):
        if part in converted[:index]:
            place.refuse(f"must not contain {_show_value(value[index], item)} twice")
    return converted


def _convert_table(
    value: object, value_type: ValueType, place: Place, base: Path
) -> dict[str, object]:
    if not isinstance(value, dict):
        place.refuse(f"must be {value_type.description}, not {_show_value(value, value_type.item)}")
    converted = {}
    for name, part in value.items():
        shown = place.item(f".{name if name.isidentifier() else quote_text(name)}")
        convert_value(name, value_type.name, shown, base)
        converted[name] = convert_value(part, value_type.item, shown, base)
    return converted


def _convert_path(value: object, value_type: ValueType, place: Place, base: Path) -> Path | None:
    if value == "" and value_type.optional:
        return None
    if not isinstance(value, str) or not value.strip() or not is_storable(value):
        place.refuse(f"must be {value_type.description}, not {_show_value(value, value_type)}")
    return Path(os.path.normpath(base / value))


def _is_of_type(value: object, wanted: object) -> bool:
    if get_origin(wanted) is Literal:
        return isinstance(value, str) and value in get_args(wanted)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if get_origin(wanted) is dict:
        return isinstance(value, dict)
    return type(value) is wanted


def _is_json(value: object, depth: int = 1) -> bool:
    if depth > _MAXIMUM_DEPTH:
        return False
    if isinstance(value, dict):
        return all(is_storable(key) and _is_json(item, depth + 1) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_json(item, depth + 1) for item in value)
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool) or (isinstance(value, int) and value in _INTEGERS)


def _describe_type(value_type: ValueType) -> str:
    if get_origin(value_type.type) is Literal:
        return join_quoted(get_args(value_type.type))
    if value_type.is_list:
        return f"a list, each element {value_type.item.description}"
    if value_type.is_table:
        return f"a table, each value {value_type.item.description}"
    names = {
        str: "a text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        Path: "the path of a file",
    }
    return next((words for known, words in names.items() if known is value_type.type), "a table")


def _show_value(value: object, value_type: ValueType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    if value_type.secret:
        return "this one" if isinstance(value, str) else "a number"
    if isinstance(value, str):
        return quote_text(value)
    return str(value)[:_SHOWN] if isinstance(value, int | float) else "a date or time"
