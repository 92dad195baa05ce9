"""Sizes of modules and functions, and their public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import TypeGuard

import pytest

from tests.architecture.sources import Module, modules

LONGEST_FILE = 500
LONGEST_FUNCTION = 80

every_module = pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)


def public_names(module: Module) -> Iterator[str]:
    """Functions and classes at the top of a module, and what other modules take from it.

    What a decorator registers elsewhere (a command, a route) is no name that others call.
    """
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) or is_called_by_name(node):
            yield from (name for name in [node.name] if not name.startswith("_"))
    yield from taken().get(module.name, ())


def is_called_by_name(
    node: ast.stmt,
) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """A function without a decorator like `@app.command()`."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
        isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute)
        for decorator in node.decorator_list
    )


@cache
def taken() -> dict[str, set[str]]:
    """The names that modules of the package import from each other."""
    known = {module.name for module in modules()}
    found: dict[str, set[str]] = {}
    for module in modules():
        for imported, _ in module.imports():
            source, _, name = imported.rpartition(".")
            if source in known and imported not in known:
                found.setdefault(source, set()).add(name)
    return found


def in_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as ruff sorts them (RUF022)."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def exported(module: Module) -> list[str] | None:
    """`__all__`, or None without one."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return None


@every_module
def test_all_names_every_public_name_in_order(module: Module) -> None:
    names = exported(module)
    public = set(public_names(module))
    if names is None:
        assert not public
        return
    assert names == sorted(names, key=in_order)
    assert len(names) == len(set(names))
    assert public <= set(names)


@every_module
def test_all_names_nothing_that_is_not_there(module: Module) -> None:
    defined = {
        name.id
        for node in ast.walk(module.tree)
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
    if "__getattr__" not in defined:
        assert set(exported(module) or ()) <= defined


@every_module
def test_files_are_short(module: Module) -> None:
    assert len(module.text.splitlines()) <= LONGEST_FILE


@every_module
def test_functions_are_short(module: Module) -> None:
    long = [
        f"{node.name}: {(node.end_lineno or 0) - node.lineno + 1}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == []
