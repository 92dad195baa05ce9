"""The names that modules export, and names of classes with one meaning."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.architecture.sources import Module, modules

SEVERAL_MEANINGS = {
    "Database": "an entry of `[[databases]]`, and an open database",
    "Message": "the public record of a message to a run; a message of MCP",
    "Memory": "a table of the configuration; the public record of a memory",
    "Model": "an entry of `[[models]]`; the public model of each library",
}
"""Names of classes that users know with two meanings, as the words of two different things."""

PUBLIC_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def is_name(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Name) and expression.id == name


def exported(module: Module) -> list[str] | None:
    """Return `__all__`, or None without one."""
    if "__all__" not in module.text:
        return None
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and is_name(node.targets[0], "__all__"):
            return list(ast.literal_eval(node.value))
    return None


def in_order(name: str) -> tuple[int, str]:
    """Return the sort key of ruff (RUF022): constants, then classes, then the rest."""
    if name.isupper():
        return 0, name
    if name[:1].isupper():
        return 1, name
    return 2, name


def defined(module: Module) -> set[str]:
    """Return the names that a module binds."""
    names = {
        node.id
        for node in module.nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def find_same_names(source: Iterable[Module]) -> dict[str, list[str]]:
    """Return the names of public classes that two or more modules define, with these modules."""
    owners: dict[str, list[str]] = defaultdict(list)
    for module in source:
        for name in PUBLIC_CLASS.findall(module.text):
            owners[name].append(module.name)
    return {name: names for name, names in owners.items() if len(names) > 1}


def test_only_packages_export_names() -> None:
    assert [
        module.name
        for module in modules()
        if exported(module) is not None and not module.is_package
    ] == []


def test_all_is_sorted_and_has_defined_names_only() -> None:
    assert [
        module.name
        for module in modules()
        if (names := exported(module)) is not None
        if names != sorted(set(names), key=in_order)
        or ("__getattr__" not in defined(module) and not set(names) <= defined(module))
    ] == []


def test_a_class_name_has_one_meaning() -> None:
    same_names = find_same_names(modules())
    unknown = {name: same_names[name] for name in same_names.keys() - SEVERAL_MEANINGS.keys()}
    assert unknown == {}, "give one of the classes a name that says which of the two it is"


def test_a_second_class_of_a_name_is_noticed(tmp_path: Path) -> None:
    first = tmp_path / "first.py"
    second = tmp_path / "second.py"
    first.write_text("class Page: ...\n\nclass _Row: ...\n")
    second.write_text("class Page: ...\n\nclass _Row: ...\n")
    assert find_same_names([Module("first", first), Module("second", second)]) == {
        "Page": ["first", "second"]
    }
