"""The imports of `bench` and `compat` exist: those run weekly, and a change breaks them unseen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.sources import load_modules

ROOT = Path(__file__).parents[2]
OUTSIDE = ("bench", "compat")
OURS = ("agentctl", "tests", *OUTSIDE)
IMPORT = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(OUTSIDE)})\b", re.MULTILINE)


def list_imports(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what the Python files of a folder import from this repository, each with its place.

    `from a import b` is the name `a.b`.
    """
    for module in load_modules(folder):
        for imported in module.imports:
            if imported.name.split(".")[0] in OURS:
                yield f"{module.path.relative_to(ROOT)}:{imported.line}", imported.name


def find_module(name: str) -> Path | None:
    """Return the file of a module or a package; None if there is none."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def list_names(file: Path) -> frozenset[str]:
    """Return the names that a module defines or imports outside of its functions and classes."""
    names = set[str]()
    nodes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"), str(file))]
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


def exists(imported: str) -> bool:
    """Return True if there is a module of this name, or a module that has the name."""
    if find_module(imported) is not None:
        return True
    module, _, name = imported.rpartition(".")
    file = find_module(module)
    if file is None:
        return False
    # Most names are defined at the beginning of a line, which needs no parser.
    definition = rf"^(?:(?:async )?def |class )?{name}\b"
    if re.search(definition, file.read_text(encoding="utf-8"), re.MULTILINE):
        return True
    # Modules with `__getattr__` import some of their names when they are first used.
    return not {name, "__getattr__"}.isdisjoint(list_names(file))


def test_imports_of_bench_and_compat_exist() -> None:
    imports = [each for folder in OUTSIDE for each in list_imports(ROOT / folder)]
    assert len(imports) > 500
    assert [f"{place}: {name}" for place, name in imports if not exists(name)] == []


def test_neither_the_package_nor_the_tests_import_bench_or_compat() -> None:
    files = [file for folder in ("agentctl", "tests") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    assert [file for file in files if IMPORT.search(file.read_text(encoding="utf-8"))] == []


def test_missing_names_are_found() -> None:
    assert exists("tests.kit.deployment")
    assert exists("tests.kit.deployment.create_deployment")
    assert exists("agentctl.client.Client")
    assert not exists("tests.kit.deployment.create_nothing")
    assert not exists("tests.nothing")
