"""What a key may hold, beyond its type: the words stand in refusals and on the reference page.

One value of the file or of the environment, held against what its key may hold.
"""

from __future__ import annotations

import os
import re
import types
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from agentctl.config.places import Place, join_quoted
from agentctl.records.text import is_storable

__all__ = [
    "Form",
    "Range",
    "Reference",
    "Rule",
    "Secret",
    "ValueType",
    "convert_value",
    "key_types",
    "parse_variable",
    "quote_text",
]


class Range(NamedTuple):
    """A number from `low` to `high`, both included."""

    low: float
    high: float

    def allows(self, value: object) -> bool:
        """Whether `value` lies inside; never for NaN."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def description(self) -> str:
        """The bounds, to stand behind "a number"."""
        return f"from {self.low} to {self.high}"


class Form(NamedTuple):
    """A text that matches `pattern` as a whole; `words` say what that is."""

    pattern: str
    description: str

    def allows(self, value: object) -> bool:
        """Whether `value` is such a text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


class Reference(NamedTuple):
    """The id of an entry of one of these tables. The loader checks it when all tables are read."""

    first: str
    second: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are looked into."""
        return tuple(table for table in self if table)

    @property
    def description(self) -> str:
        """The tables as the file has them."""
        return " or ".join(f"[[{table}]]" for table in self.tables)


class Secret(NamedTuple):
    """A value that no message repeats; when `masked`, `config show` does not show it either."""

    masked: bool = True


Rule = Range | Form | Reference | Secret


_SHOWN = 40
_key_types: dict[type, dict[str, ValueType]] = {}


class ValueType(NamedTuple):
    """What a key holds: its type, and the rules beyond it."""

    type: object
    rules: tuple[Rule, ...] = ()
    optional: bool = False

    @property
    def item(self) -> ValueType:
        """What an element holds, for a list."""
        return _value_type(get_args(self.type)[0])

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return get_origin(self.type) is tuple

    @property
    def secret(self) -> bool:
        """Whether a message must not repeat the value."""
        return any(isinstance(rule, Secret) for rule in self.rules)

    @property
    def masked(self) -> bool:
        """Whether the value is not even shown to those who may see the configuration."""
        return any(isinstance(rule, Secret) and rule.masked for rule in self.rules)

    @property
    def reference(self) -> Reference | None:
        """The tables whose ids it may hold, for a reference."""
        return next((rule for rule in self.rules if isinstance(rule, Reference)), None)

    @property
    def description(self) -> str:
        """What is allowed, as a message says it."""
        if self.reference is not None:
            return f"the id of an entry of {self.reference.description}"
        for rule in self.rules:
            if isinstance(rule, Form):
                return rule.description
            if isinstance(rule, Range):
                return f"{_describe_type(self)} {rule.description}"
        return _describe_type(self)


def key_types(table: type) -> dict[str, ValueType]:
    """What each key of a settings class holds, in order."""
    if table not in _key_types:
        hints = get_type_hints(table, include_extras=True)
        _key_types[table] = {name: _value_type(hint) for name, hint in hints.items()}
    return _key_types[table]


def convert_value(value: object, kind: ValueType, place: Place, base: Path) -> object:
    """`value`, as TOML gave it, as the settings hold it.

    Args:
        value: what stood in the file.
        kind: what the key holds.
        place: for the message.
        base: the folder that relative paths are relative to.

    Raises:
        InvalidConfiguration: the value is of another type or out of bounds.
    """
    if kind.is_list:
        return _convert_list(value, kind, place, base)
    if kind.type is Path:
        return _convert_path(value, kind, place, base)
    if not _is_of_type(value, kind.type) or not _is_allowed(value, kind):
        place.refuse(f"must be {kind.description}, not {_show_value(value, kind)}")
    if isinstance(value, str) and not is_storable(value):
        place.refuse("must not hold a NUL character or half of a surrogate pair")
    return value


def parse_variable(text: str, kind: ValueType) -> object:
    """The TOML value that an environment variable's text stands for.

    Texts and paths are taken as they are, everything else is read as TOML reads it. What cannot be
    read stays text, so that `convert` refuses it with the same words as in a file.
    """
    if kind.type is Path or get_origin(kind.type) is Literal or kind.type is str:
        return text
    from tomllib import loads

    try:
        parsed = loads(f"value = {text.lower() if kind.type is bool else text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def quote_text(text: str) -> str:
    """`text` in quotes on one line, cut at 40 characters, control characters escaped."""
    import json

    quoted = json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "…", ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in quoted)


def _value_type(hint: object) -> ValueType:
    """Take `Annotated` and `| None` apart; rules of the outer annotation come first."""
    rules: tuple[Rule, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        rules = tuple(extra for extra in extras if isinstance(extra, Rule))
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(part for part in get_args(hint) if part is not type(None))
        return ValueType(inner, rules, optional=True)
    return ValueType(hint, rules)


def _convert_list(value: object, kind: ValueType, place: Place, base: Path) -> tuple[object, ...]:
    item = kind.item
    if not isinstance(value, list):
        place.refuse(f"must be {kind.description}, not {_show_value(value, item)}")
    converted = tuple(
        convert_value(part, item, place.item(f"[{index}]"), base)
        for index, part in enumerate(value)
    )
    for index, part in enumerate(converted):
        if part in converted[:index]:
            place.refuse(f"must not hold {_show_value(value[index], item)} twice")
    return converted


def _convert_path(value: object, kind: ValueType, place: Place, base: Path) -> Path | None:
    if value == "" and kind.optional:
        return None
    if not isinstance(value, str) or not value.strip() or not is_storable(value):
        place.refuse(f"must be {kind.description}, not {_show_value(value, kind)}")
    return Path(os.path.normpath(base / value))


def _is_of_type(value: object, wanted: object) -> bool:
    """Whether `value` is of the type; true and false are not numbers."""
    if get_origin(wanted) is Literal:
        return isinstance(value, str) and value in get_args(wanted)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is wanted


def _is_allowed(value: object, kind: ValueType) -> bool:
    return all(rule.allows(value) for rule in kind.rules if isinstance(rule, Range | Form))


def _describe_type(kind: ValueType) -> str:
    if get_origin(kind.type) is Literal:
        return join_quoted(get_args(kind.type))
    if kind.is_list:
        return f"a list, each {kind.item.description}"
    names = {
        str: "a text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        Path: "the path of a file",
    }
    return next((words for known, words in names.items() if known is kind.type), "a table")


def _show_value(value: object, kind: ValueType) -> str:
    """A value for a message, on one line; of secrets the type only."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    if kind.secret:
        return "this one" if isinstance(value, str) else "a number"
    if isinstance(value, str):
        return quote_text(value)
    return str(value)[:_SHOWN] if isinstance(value, int | float) else "a date or time"
