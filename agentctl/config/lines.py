"""Which line of a TOML text gives which key: for messages, so a key it cannot find is no harm."""

from __future__ import annotations

import re

__all__ = ["KeyPath", "line_numbers"]

KeyPath = tuple[str | int, ...]
"""`("server", "port")`, `("agents", 1, "model")`."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*([\w.\- \t]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([\w-]+(?:[ \t]*\.[ \t]*[\w-]+)*)[ \t]*=")
_TRIPLE = re.compile("\"\"\"|'''")


def line_numbers(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of every table header and every bare key of `text`.

    Keys in quotes and keys of inline tables are left out.
    """
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not closing:
            if header := _HEADER.match(line):
                table = _opened(header[1] == "[[", _parts(header[2]), counts)
                found.setdefault(table, number)
            elif key := _KEY.match(line):
                found[table + _parts(key[1])] = number
        closing = _still_open(line, closing)
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in dotted.split("."))


def _opened(is_list: bool, parts: tuple[str, ...], counts: dict[KeyPath, int]) -> KeyPath:
    """The path of the table that a header opens; a list of tables gets one entry more."""
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


def _still_open(line: str, closing: str) -> str:
    """The triple quote that is still to come after `line`, or nothing."""
    for mark in _TRIPLE.findall(line):
        if not closing:
            closing = mark
        elif mark == closing:
            closing = ""
    return closing
