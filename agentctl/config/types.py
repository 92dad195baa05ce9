"""What a key may hold, beyond its type: the words stand in refusals and on the reference page.

One value of the file or of the environment, held against what its key may hold.
"""

from __future__ import annotations

import os
import re
import types
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from agentctl.config.places import Place, listed
from agentctl.records.text import is_storable

__all__ = [
    "Form",
    "Kind",
    "Range",
    "Refers",
    "Rule",
    "Secret",
    "convert",
    "from_text",
    "key_kinds",
    "sanitized",
]


class Range(NamedTuple):
    """A number from `low` to `high`, both included."""

    low: float
    high: float

    def allows(self, value: object) -> bool:
        """Whether `value` lies inside; never for NaN."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def words(self) -> str:
        """The bounds, to stand behind "a number"."""
        return f"from {self.low} to {self.high}"


class Form(NamedTuple):
    """A text that matches `pattern` as a whole; `words` say what that is."""

    pattern: str
    words: str

    def allows(self, value: object) -> bool:
        """Whether `value` is such a text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


class Refers(NamedTuple):
    """The id of an entry of one of these tables. The loader checks it when all tables are read."""

    first: str
    second: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are looked into."""
        return tuple(table for table in self if table)

    @property
    def words(self) -> str:
        """The tables as the file has them."""
        return " or ".join(f"[[{table}]]" for table in self.tables)


class Secret(NamedTuple):
    """A value that no message repeats; when `masked`, `config show` does not show it either."""

    masked: bool = True


Rule = Range | Form | Refers | Secret


_SHOWN = 40
_known: dict[type, dict[str, Kind]] = {}


class Kind(NamedTuple):
    """What a key holds: its type, and the rules beyond it."""

    type: object
    rules: tuple[Rule, ...] = ()
    optional: bool = False

    @property
    def item(self) -> Kind:
        """What an element holds, for a list."""
        return _kind(get_args(self.type)[0])

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
    def refers(self) -> Refers | None:
        """The tables whose ids it may hold, for a reference."""
        return next((rule for rule in self.rules if isinstance(rule, Refers)), None)

    @property
    def words(self) -> str:
        """What is allowed, as a message says it."""
        if self.refers is not None:
            return f"the id of an entry of {self.refers.words}"
        for rule in self.rules:
            if isinstance(rule, Form):
                return rule.words
            if isinstance(rule, Range):
                return f"{_type_words(self)} {rule.words}"
        return _type_words(self)


def key_kinds(table: type) -> dict[str, Kind]:
    """What each key of a settings class holds, in order."""
    if table not in _known:
        hints = get_type_hints(table, include_extras=True)
        _known[table] = {name: _kind(hint) for name, hint in hints.items()}
    return _known[table]


def convert(value: object, kind: Kind, place: Place, base: Path) -> object:
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
        return _converted_list(value, kind, place, base)
    if kind.type is Path:
        return _converted_path(value, kind, place, base)
    if not _is_of_type(value, kind.type) or not _is_allowed(value, kind):
        place.refuse(f"must be {kind.words}, not {_shown(value, kind)}")
    if isinstance(value, str) and not is_storable(value):
        place.refuse("must not hold a NUL character or half of a surrogate pair")
    return value


def from_text(text: str, kind: Kind) -> object:
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


def sanitized(text: str) -> str:
    """`text` in quotes on one line, cut at 40 characters, control characters escaped."""
    import json

    quoted = json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "…", ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in quoted)


def _kind(hint: object) -> Kind:
    """Take `Annotated` and `| None` apart; rules of the outer annotation come first."""
    rules: tuple[Rule, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        rules = tuple(extra for extra in extras if isinstance(extra, Rule))
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(part for part in get_args(hint) if part is not type(None))
        return Kind(inner, rules, optional=True)
    return Kind(hint, rules)


def _converted_list(value: object, kind: Kind, place: Place, base: Path) -> tuple[object, ...]:
    item = kind.item
    if not isinstance(value, list):
        place.refuse(f"must be {kind.words}, not {_shown(value, item)}")
    converted = tuple(
        convert(part, item, place.item(f"[{index}]"), base) for index, part in enumerate(value)
    )
    for index, part in enumerate(converted):
        if part in converted[:index]:
            place.refuse(f"must not hold {_shown(value[index], item)} twice")
    return converted


def _converted_path(value: object, kind: Kind, place: Place, base: Path) -> Path | None:
    if value == "" and kind.optional:
        return None
    if not isinstance(value, str) or not value.strip() or not is_storable(value):
        place.refuse(f"must be {kind.words}, not {_shown(value, kind)}")
    return Path(os.path.normpath(base / value))


def _is_of_type(value: object, wanted: object) -> bool:
    """Whether `value` is of the type; true and false are not numbers."""
    if get_origin(wanted) is Literal:
        return isinstance(value, str) and value in get_args(wanted)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is wanted


def _is_allowed(value: object, kind: Kind) -> bool:
    return all(rule.allows(value) for rule in kind.rules if isinstance(rule, Range | Form))


def _type_words(kind: Kind) -> str:
    if get_origin(kind.type) is Literal:
        return listed(get_args(kind.type))
    if kind.is_list:
        return f"a list, each {kind.item.words}"
    names = {
        str: "a text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        Path: "the path of a file",
    }
    return next((words for known, words in names.items() if known is kind.type), "a table")


def _shown(value: object, kind: Kind) -> str:
    """A value for a message, on one line; of secrets the type only."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    if kind.secret:
        return "this one" if isinstance(value, str) else "a number"
    if isinstance(value, str):
        return sanitized(value)
    return str(value)[:_SHOWN] if isinstance(value, int | float) else "a date or time"
