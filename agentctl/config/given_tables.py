"""The values of a configuration, from the file and from environment variables, with their places.

Keys of single tables are also read from environment variables: `AGENTCTL_SECTION__KEY` and the two
`JWT_*` variables. Variables without `__` are ignored: container platforms generate names such as
AGENTCTL_PORT for a service of that name. The rules are in docs/contract.md "Configuration".
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentctl.config.places import KeyPath, Place, add_member, line_numbers
from agentctl.config.tables import (
    FORMER_HINTS,
    FORMER_KEYS,
    FORMER_PROBLEM,
    list_sections,
    section_keys,
)
from agentctl.records.text import (
    COMPONENT_ID,
    INTEGERS,
    UNSTORABLE,
    is_storable,
    quote_text,
    suggest_name,
)

PREFIX = "AGENTCTL_"
TEST_PREFIX = "AGENTCTL_TEST_"


def variable_name(key: str) -> str:
    """Return the variable of a key: AGENTCTL_SERVER__PORT for `server.port`."""
    return PREFIX + key.upper().replace(".", "__")


class GivenTables:
    """The tables of a file, with the values of variables in the place of their keys.

    Args:
        file: the path of the file, for messages.
        text: its text.
        values: the tables of this text; they are changed.
    """

    def __init__(self, file: Path, text: str, values: dict[str, Any]) -> None:
        self.values = values
        """The tables to validate."""

        self.places: dict[str, Place] = {}
        """The place of each key, once `add_places` has got its table."""

        self._file = str(file)
        self._lines = line_numbers(text)
        self._variables: dict[KeyPath, str] = {}

    def add_variables(self, environ: Mapping[str, str]) -> None:
        """Set the keys of environment variables.

        Raises:
            InvalidConfiguration: a variable of this form belongs to no key.
        """
        keys = {variable_name(key): key for key in section_keys()}
        former_values = {variable_name(key): value for key, value in FORMER_KEYS.items()}
        for name in sorted(environ):
            if name in keys:
                self._set(keys[name], name, environ[name])
            elif name in former_values:
                if environ[name] != str(former_values[name]):
                    problem = FORMER_PROBLEM.format(former_values[name])
                    Place("", variable=name).refuse(problem, hint="unset it")
            elif name.startswith(PREFIX) and "__" in name and not name.startswith(TEST_PREFIX):
                similar_name = _suggest_variable(name, list(keys))
                guess = f"; did you mean {similar_name}?" if similar_name else ""
                Place("", variable=name).refuse(
                    f"this version has no such key{guess}",
                    hint=f"unset it; only keys of single tables have variables, such as "
                    f"{variable_name('server.port')}; lists of tables are set in the file",
                )

    def _set(self, key: str, variable: str, text: str) -> None:
        """Set a key to the text of a variable."""
        section, _, name = key.partition(".")
        defaults = list_sections()[section]()
        table = self.values.setdefault(section, {})
        # Anything else is refused later, with the place in the file.
        if isinstance(table, dict):
            table[name] = _parse_variable(text, getattr(defaults, name))
            self._variables[(section, name)] = variable

    def remove_former_keys(self) -> None:
        """Remove the keys that are constants now.

        Raises:
            InvalidConfiguration: such a key has another value than the constant.
        """
        former_paths: list[KeyPath] = []
        changed_paths: dict[str, KeyPath] = {}
        for path, value in _list_values(self.values):
            key = _former_key(path)
            if key in FORMER_KEYS:
                former_paths.append(path)
                if value != FORMER_KEYS[key]:
                    changed_paths[key] = path

        if changed_paths:
            # All of them at once, with the place of the first one.
            key, path = next(iter(changed_paths.items()))
            problem = FORMER_PROBLEM.format(FORMER_KEYS[key])
            noun = "keys" if len(changed_paths) > 1 else "key"
            hint = f"remove the {noun}: {', '.join(changed_paths)}"
            place = self.find_place(path)._replace(key=key)
            place.refuse(problem, hint=FORMER_HINTS.get(key, hint))

        for path in former_paths:
            table: Any = self.values
            for step in path[:-1]:
                table = table[step]
            del table[path[-1]]

    def check_values(self) -> None:
        """Refuse values that no key has, so that every value can be written as JSON.

        Raises:
            InvalidConfiguration: there is such a value.
        """
        for path, value in _list_values(self.values):
            problem = None
            if isinstance(value, str) and not is_storable(value):
                problem = UNSTORABLE
            elif type(value) is int and value not in INTEGERS:
                problem = "must not have an integer of more than 64 bits"
            elif isinstance(value, datetime.date | datetime.time):
                problem = "must not be a date or time; write it in quotes"

            if problem is not None:
                self.find_place(path).refuse(problem)

    def find_place(self, path: KeyPath) -> Place:
        """Return the place of a value; if it is absent, with the line of its table."""
        return self._build_place(self._name_key(path), path)

    def _build_place(self, key: str, path: KeyPath) -> Place:
        variable = self._variables.get(path[:2])
        if variable is not None:
            return Place(self._file, key, variable=variable)

        while path:
            # The line of a list of tables is the line of its first table.
            for lined_path in (path, (*path, 0)):
                if lined_path in self._lines:
                    return Place(self._file, key, line=self._lines[lined_path])
            path = path[:-1]
        return Place(self._file, key)

    def _name_key(self, path: KeyPath) -> str:
        """Return `agents.writer.tools[0]` for `("agents", 1, "tools", 0)`."""
        key = ""
        for at, step in enumerate(path):
            if isinstance(step, str):
                key = add_member(key, step)
                continue

            # An entry is named by its id; the id itself by the number of the entry.
            entry_id = None
            if at == 1 and path[2:] != ("id",):
                entry_id = self._find_id(path)
            key += f"[{step}]" if entry_id is None else f".{entry_id}"

        return key.removeprefix(".")

    def _find_id(self, path: KeyPath) -> str | None:
        """Return the id of the entry at a path; None if it has no valid one."""
        entry = self.values[str(path[0])][path[1]]
        entry_id = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(entry_id, str) and re.fullmatch(COMPONENT_ID[1:-1], entry_id):
            return entry_id
        return None

    def add_places(self, table: Any, path: KeyPath) -> None:
        """Add the places of the keys of a table, and of the tables in it.

        Args:
            table: the settings that the table has become.
            path: the path of the table in the file.
        """
        given_table: Any = self.values
        for step in path:
            if isinstance(given_table, dict):
                given_table = given_table.get(step, {})
            else:
                given_table = given_table[step]

        table_key = self._name_key(path)
        table_place = self._build_place(table_key, path)
        for field in dataclasses.fields(table):
            key = f"{table_key}.{field.name}"
            if field.name not in given_table:
                # Most keys are defaults: each has the line of the table, which was found once.
                line = table_place.line
                self.places[key] = Place(self._file, key, line, table_place.variable, given=False)
                continue

            value = getattr(table, field.name)
            if dataclasses.is_dataclass(value):
                self.add_places(value, (*path, field.name))
            elif isinstance(value, tuple):
                self._add_items(value, field, (*path, field.name))
            self.places[key] = self._build_place(key, (*path, field.name))

    def _add_items(
        self, items: tuple[Any, ...], field: dataclasses.Field[Any], path: KeyPath
    ) -> None:
        for index, item in enumerate(items):
            if dataclasses.is_dataclass(item):
                self.add_places(item, (*path, index))
            elif item in items[:index] and "repeats" not in field.metadata:
                shown = quote_text(str(item)) if field.repr else "this one"
                self.find_place(path).refuse(f"must not contain {shown} twice")


def _suggest_variable(name: str, known_names: list[str]) -> str | None:
    """Return the most similar variable, of the same table if there is such a table."""
    section, _, key = name.partition("__")
    prefix = f"{section}__"
    keys = [known.removeprefix(prefix) for known in known_names if known.startswith(prefix)]
    if not keys:
        return suggest_name(name, known_names)

    similar_key = suggest_name(key, keys)
    return None if similar_key is None else f"{prefix}{similar_key}"


def _parse_variable(text: str, default: object) -> object:
    """Parse the text of an environment variable as a TOML value.

    A key whose default is a text or a path, or which has none, takes the text unchanged, and so
    does a list of one element without brackets. A malformed value stays a text, which the type of
    the key refuses with the same message as in a file.
    """
    if default is None or isinstance(default, str | Path):
        return text
    if isinstance(default, tuple) and not text.startswith("["):
        return text

    from tomllib import loads

    # `TRUE` and `False` are common in variables, and no TOML.
    value = text.lower() if isinstance(default, bool) else text
    try:
        parsed = loads(f"value = {value}")
    except (ValueError, RecursionError):
        return text

    # A text with line feeds can have further keys.
    if parsed.keys() != {"value"}:
        return text
    return parsed["value"]


def _list_values(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values of tables with their paths, without tables and lists."""
    items: Iterable[tuple[str | int, object]]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield path, value
        return

    for name, item in items:
        yield from _list_values(item, (*path, name))


def _former_key(path: KeyPath) -> str:
    """Return the key of `FORMER_KEYS` at a path."""
    return ".".join(part for part in path if isinstance(part, str))
