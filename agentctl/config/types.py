"""Types and rules of configuration values, and the conversion of values from TOML and variables.

The descriptions of rules are part of error messages and of the reference page.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentctl.config.places import Place
from agentctl.records.text import quote_text
from agentctl.records.value_types import Rule, ValueType, WrongValue


@dataclass(frozen=True)
class Reference(Rule):
    """The id of an entry of another table, checked after all tables are read."""

    tables: tuple[str, ...]

    @property
    def notation(self) -> str:
        """The tables as in the file: `[[agents]] or [[teams]]`."""
        return " or ".join(f"[[{table}]]" for table in self.tables)

    def describe(self, words: str) -> str:
        return f"the id of an entry of {self.notation}"


@dataclass(frozen=True)
class Secret(Rule):
    """A value that no message repeats; `config show` hides a `masked` one too."""

    masked: bool = True


class OneOrMore(Rule):
    """A list whose only element may be written without brackets; an empty text is no element."""

    def describe(self, words: str) -> str:
        return f"a text, or {words}"


class Repeats(Rule):
    """A list in which the same element may occur more than once."""


def convert_value(value: Any, value_type: ValueType, place: Place, base: Path) -> Any:
    """Convert a TOML value, a path relative to `base`; InvalidConfiguration if it breaks a rule."""
    if isinstance(value, str) and value_type.find_rule(OneOrMore) is not None:
        value = [value] if value else []
    try:
        converted = value_type.check(value)
    except WrongValue as wrong:
        actual = wrong.expected and f", not {_show_value(wrong.value, wrong.expected)}"
        place.item(wrong.path).refuse(wrong.problem + (actual or ""))
    if isinstance(converted, Path):
        return _make_absolute(converted, base)
    if not isinstance(converted, tuple):
        return converted
    if value_type.item.kind is Path:
        converted = tuple(_make_absolute(path, base) for path in converted)
    if value_type.find_rule(Repeats) is None:
        for index, part in enumerate(converted):
            if part in converted[:index]:
                repeated = _show_value(value[index], value_type.item)
                place.refuse(f"must not contain {repeated} twice")
    return converted


def parse_variable(text: str, value_type: ValueType) -> object:
    """Parse the text of an environment variable as a TOML value.

    Texts and paths are used unchanged. Malformed values stay text, so that `convert_value` rejects
    them with the same message as in a file.
    """
    is_one = value_type.find_rule(OneOrMore) is not None and not text.startswith("[")
    if is_one or value_type.kind in (Path, Literal, str):
        return text
    from tomllib import loads

    try:
        parsed = loads(f"value = {text.lower() if value_type.kind is bool else text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _make_absolute(path: Path, base: Path) -> Path:
    return Path(os.path.normpath(base / path))


def _show_value(value: object, value_type: ValueType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    if any(part.find_rule(Secret) for part in (value_type, *value_type.parts)):
        return "this one" if isinstance(value, str) else "a number"
    if isinstance(value, str):
        return quote_text(value)
    return str(value)[:40] if isinstance(value, int | float) else "a date or time"
