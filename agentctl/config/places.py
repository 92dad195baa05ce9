"""Places of configured values, for error messages and `config show --sources`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from agentctl.errors import InvalidConfiguration
from agentctl.records.text import quote_text, suggest_name

KeyPath = tuple[str | int, ...]
"""The path of a key in a document: `("server", "port")`, `("agents", 1, "model")`."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*([\w.\- \t]+?)\s*\]\]?\s*(#.*)?$")

_KEY = re.compile(r"^\s*([\w-]+(?:[ \t]*\.[ \t]*[\w-]+)*)[ \t]*=")

_TRIPLE = re.compile("\"\"\"|'''")


@dataclass(frozen=True, slots=True)
class Place:
    """A key and the source of its value.

    Attributes:
        key: the name of the key, such as `server.port` or `agents.writer.model`.
        line: the line of the key in the file; None if it is unknown or not in the file.
        variable: the environment variable with the value, or empty.
        given: False for a default.
        provider: the identity provider whose default it is, or empty.
    """

    file: str
    key: str = ""
    line: int | None = None
    variable: str = ""
    given: bool = True
    provider: str = ""

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
        return replace(self, key=self.key + suffix)

    def member(self, name: str) -> Place:
        """Return the place of a member of a table, with its name in quotes if it needs them."""
        return self.item(f".{name if name.isidentifier() else quote_text(name)}")

    def refuse_unknown_id(self, entry_id: str, notation: str, known: Collection[str]) -> NoReturn:
        near = suggest_name(entry_id, known)
        guess = f'did you mean "{near}"?' if near else f"configured: {', '.join(known) or 'none'}"
        self.refuse(f"no entry of {notation} has the id {quote_text(entry_id)}; {guess}")

    def refuse(self, problem: str, *, hint: str | None = None) -> NoReturn:
        """Raise InvalidConfiguration with the source, the key and the problem."""
        where = self.variable or (f"{self.file}: {self.key}" if self.key else self.file)
        cause = None if self.line is None or self.variable else f"line {self.line} of the file"
        raise InvalidConfiguration(f"{where}: {problem}", cause=cause, hint=hint)


def join_quoted(names: Iterable[str]) -> str:
    """Join names for a sentence: `"a", "b" or "c"`."""
    quoted = [f'"{name}"' for name in names]
    return " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]])) if quoted else "none"


def line_numbers(text: str) -> dict[KeyPath, int]:
    """Return the line numbers, from 1, of the table headers and bare keys of a TOML text.

    Quoted keys and keys of inline tables are omitted; their errors then name no line.
    """
    numbers: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not closing:
            if header := _HEADER.match(line):
                table = _table_path(header[1] == "[[", _split_key(header[2]), counts)
                numbers.setdefault(table, number)
            elif key := _KEY.match(line):
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
    path: KeyPath = ()
    for part in parts[:-1]:
        path += (part,)
        if path in counts:
            path += (counts[path],)
    path += (parts[-1],)
    if not is_list:
        return path
    counts[path] = counts.get(path, -1) + 1
    return (*path, counts[path])
