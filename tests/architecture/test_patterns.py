"""The regular expressions of the package match the same in every release of Python from 3.11.0.

Up to 3.11.4, a possessive quantifier that repeats a group with alternatives can match wrongly
(https://github.com/python/cpython/issues/106052).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.sources import modules

_parser = re._parser  # type: ignore[attr-defined]
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")


def find_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find all texts and their lines; in f-strings, each inserted value is the letter x."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.JoinedStr(values):
                parts = [v.value if isinstance(v, ast.Constant) else "x" for v in values]
                yield node.lineno, "".join(map(str, parts))
            case ast.Constant(str(text)):
                yield node.lineno, text
            case ast.Constant(bytes(data)):
                yield node.lineno, data.decode("latin-1")
            case _:
                yield from find_texts(node)


def repeats_alternatives(pattern: str) -> bool:
    """Return True if a possessive quantifier repeats a group with alternatives."""

    def visit(item: object, inside: bool) -> bool:
        if isinstance(item, tuple) and item:
            if inside and str(item[0]) == "BRANCH":
                return True
            inside = inside or str(item[0]) == "POSSESSIVE_REPEAT"
        items = item if isinstance(item, tuple | list | _parser.SubPattern) else ()
        return any(visit(part, inside) for part in items)

    return visit(_parser.parse(pattern), inside=False)


def test_no_possessive_quantifier_repeats_alternatives() -> None:
    texts = [(module.name, *found) for module in modules() for found in find_texts(module.tree)]
    wrong = [
        f"{name}:{line}"
        for name, line, text in texts
        if POSSESSIVE_GROUP.search(text) and repeats_alternatives(text)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("BEGIN(?:[^-]|-(?!----))*+-----END", True),
        ("(?P<name>x(?:ab|cd))++", True),
        ("(?:(?:ab|cd)e){2,3}+", True),
        ('"[^"\\\\]*+(?:\\\\.[^"\\\\]*+)*+"?', False),
        ("(?:ab|cd)*e++", False),
    ],
)
def test_the_search_finds_such_patterns(pattern: str, found: bool) -> None:
    ((_, text),) = find_texts(ast.parse(f"re.compile({pattern!r})"))
    assert bool(POSSESSIVE_GROUP.search(text) and repeats_alternatives(text)) is found
