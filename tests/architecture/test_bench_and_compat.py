"""The imports of `bench` and `compat` exist: those run weekly, and a change breaks them unseen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OUTSIDE = ("bench", "compat")
OURS = ("agentctl", "tests", *OUTSIDE)
IMPORT = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(OUTSIDE)})\b", re.MULTILINE)


class Import(NamedTuple):
    """A name that a module of this repository imports from another one."""

    place: str
    """The file, relative to the repository, and the line."""

    module: str
    name: str
    """Empty for `import module`."""


def read_tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def list_imports(folder: Path) -> Iterator[Import]:
    """Yield what the Python files of a folder import from this repository."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(read_tree(file)):
            place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.ImportFrom) and is_ours(node.module):
                yield from (Import(place, str(node.module), each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                names = (each.name for each in node.names if is_ours(each.name))
                yield from (Import(place, name, "") for name in names)


def is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in OURS


def find_module(name: str) -> Path | None:
    """Return the file of a module or a package; None if there is none."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def list_names(file: Path) -> frozenset[str]:
    """Return the names that a module defines or imports outside of its functions and classes."""
    names = set[str]()
    nodes: list[ast.AST] = [read_tree(file)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {each.asname or each.name.split(".")[0] for each in node.names}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        nodes += ast.iter_child_nodes(node)
    return frozenset(names)


def exists(each: Import) -> bool:
    """Return True if the module exists and has the name, or a submodule of this name."""
    file = find_module(each.module)
    if file is None:
        return False
    names = list_names(file)
    # Modules with `__getattr__` import some of their names when they are first used.
    return (
        each.name in names
        or each.name == ""
        or "__getattr__" in names
        or find_module(f"{each.module}.{each.name}") is not None
    )


def test_imports_of_bench_and_compat_exist() -> None:
    imports = [each for folder in OUTSIDE for each in list_imports(ROOT / folder)]
    assert len(imports) > 500
    assert [each for each in imports if not exists(each)] == []


def test_neither_the_package_nor_the_tests_import_bench_or_compat() -> None:
    files = [file for folder in ("agentctl", "tests") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    assert [file for file in files if IMPORT.search(file.read_text(encoding="utf-8"))] == []


def test_missing_names_are_found() -> None:
    assert exists(Import("", "tests.kit.deployment", "create_deployment"))
    assert exists(Import("", "tests.kit", "deployment"))
    assert not exists(Import("", "tests.kit.deployment", "create_nothing"))
    assert not exists(Import("", "tests.nothing", ""))
