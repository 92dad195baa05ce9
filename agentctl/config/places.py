"""Places of configured values, for error messages and `config show --sources`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, NoReturn

from agentctl.errors import InvalidConfiguration
from agentctl.records.text import quote_text, suggest_name

KeyPath = tuple[str | int, ...]
"""The path of a key in a document: `("server", "port")`, `("agents", 1, "model")`."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*([\w.\- \t]+?)\s*\]\]?\s*(#.*)?$")

_KEY = re.compile(r"^\s*([\w-]+(?:[ \t]*\.[ \t]*[\w-]+)*)[ \t]*=")

_TRIPLE = re.compile("\"\"\"|'''")


class Place(NamedTuple):
    """A key and the source of its value. A configuration has a thousand of them."""

    file: str

    key: str = ""
    """The name of the key, such as `server.port` or `agents.writer.model`."""

    line: int | None = None
    """The line of the key in the file; None if it is unknown or not in the file."""

    variable: str = ""
    """The environment variable with the value, or empty."""

    given: bool = True
    """False for a default."""

    provider: str = ""
    """The identity provider whose default it is, or empty."""

    @property
    def source(self) -> str:
        """The source: `default`, `provider NAME`, `env NAME`, `FILE:LINE` or `FILE`."""
        if self.variable:
            return f"env {self.variable}"
        if not self.given:
            return f"provider {self.provider}" if self.provider else "default"
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def item(self, suffix: str) -> Place:
        """Return the place of an element: `[0]` of a list, `.name` of a table."""
        return self._replace(key=self.key + suffix)

    def member(self, name: str) -> Place:
        """Return the place of a member of a table, with its name in quotes if it needs them."""
        return self._replace(key=add_member(self.key, name))

    def refuse_unknown_id(
        self, entry_id: str, notation: str, known_ids: Collection[str]
    ) -> NoReturn:
        """Raise InvalidConfiguration for an id without an entry, with a guess or all ids.

        Args:
            notation: the tables as in the file, such as `[[agents]] or [[teams]]`.
            known_ids: the ids of their entries.
        """
        guess = f"configured: {', '.join(known_ids) or 'none'}"
        similar_id = suggest_name(entry_id, known_ids)
        if similar_id:
            guess = f'did you mean "{similar_id}"?'
        self.refuse(f"no entry of {notation} has the id {quote_text(entry_id)}; {guess}")

    def refuse(self, problem: str, *, hint: str | None = None) -> NoReturn:
        """Raise InvalidConfiguration with the source, the key and the problem."""
        where = self.file
        if self.variable:
            where = self.variable
        elif self.key:
            where = f"{self.file}: {self.key}"

        cause = None
        if self.line is not None and not self.variable:
            cause = f"line {self.line} of the file"
        raise InvalidConfiguration(f"{where}: {problem}", cause=cause, hint=hint)


def add_member(key: str, name: str) -> str:
    """Return the key of a member of a table, with its name in quotes if it needs them."""
    shown_name = name if name.isidentifier() else quote_text(name)
    return f"{key}.{shown_name}"


def join_quoted(names: Iterable[str]) -> str:
    """Join names for a sentence: `"a", "b" or "c"`; `none` without names."""
    quoted_names = [f'"{name}"' for name in names]
    if not quoted_names:
        return "none"
    if len(quoted_names) == 1:
        return quoted_names[0]
    return f"{', '.join(quoted_names[:-1])} or {quoted_names[-1]}"


def line_numbers(text: str) -> dict[KeyPath, int]:
    """Return the line numbers, from 1, of the table headers and bare keys of a TOML text.

    Quoted keys and keys of inline tables are omitted; their errors then name no line.
    """
    numbers: dict[KeyPath, int] = {}
    # The number of the last table of each list of tables, from 0.
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    # The mark that ends the text of several lines that the line is in; "" outside of one.
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not closing:
            header = _HEADER.match(line)
            key = _KEY.match(line)
            if header:
                table = _table_path(header[1] == "[[", _split_key(header[2]), counts)
                numbers.setdefault(table, number)
            elif key:
                numbers[table + _split_key(key[1])] = number

        for mark in _TRIPLE.findall(line):
            if not closing:
                closing = mark
            elif mark == closing:
                closing = ""

    return numbers


def _split_key(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in dotted.split("."))


def _table_path(is_list: bool, parts: tuple[str, ...], counts: dict[KeyPath, int]) -> KeyPath:
    """Return the path of a table header; for a list of tables, with the number of this one."""
    path: KeyPath = ()
    for part in parts[:-1]:
        path += (part,)
        if path in counts:
            # `[agents.memory]` belongs to the last table of `[[agents]]`.
            path += (counts[path],)

    path += (parts[-1],)
    if not is_list:
        return path
    counts[path] = counts.get(path, -1) + 1
    return (*path, counts[path])
