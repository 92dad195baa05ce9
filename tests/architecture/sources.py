"""The modules of the package as texts and syntax trees, and their imports of each other."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["PACKAGE", "Import", "Module", "cycles", "load_modules", "modules", "part"]

PACKAGE = Path(__file__).parents[2] / "agentctl"

_IMPORT = re.compile(
    r"^ *(?:from [\w.]+ import (?:\([^)]*\)|.+)|import [\w.]+(?: as \w+)?(?:, [\w.]+)*(?: +#.*)?)$",
    re.MULTILINE,
)
"""A statement that imports modules, or names of a module."""

_LOADED_MODULE = re.compile(r'\bimport_module\(\s*"([\w.]+)"')

_TYPING_BLOCK = re.compile(
    r"^( *)if (?:\w+\.)?TYPE_CHECKING:\n(?P<body>(?:\1 .*\n|\n)*)", re.MULTILINE
)


@dataclass(frozen=True)
class Import:
    """A module, or a name of a module, that is imported: `from a import b` is the name `a.b`."""

    name: str
    line: int
    typing_only: bool


@dataclass(frozen=True)
class Module:
    """A source file and its dotted name."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree. A walk takes as long as the parser, so tests share one."""
        return list(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """The dotted name of the folder that the file is in."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, also those inside functions and those by `import_module`.

        They are found in the text, which takes a tenth of the time of the syntax trees. An example
        in a docstring counts, too.
        """
        blocks = [block.span("body") for block in _TYPING_BLOCK.finditer(self.text)]
        found = []
        for match in _IMPORT.finditer(self.text):
            line = self._count_lines(match.start())
            typing_only = any(first <= match.start() < last for first, last in blocks)
            for name in self._list_names(match[0]):
                found.append(Import(name, line, typing_only))
        for match in _LOADED_MODULE.finditer(self.text):
            found.append(Import(match[1], self._count_lines(match.start()), typing_only=False))
        return found

    @property
    def imports_of_tree(self) -> list[Import]:
        """All imports, found in the syntax tree."""
        typing_only = {
            id(node)
            for branch in self.nodes
            if isinstance(branch, ast.If) and _find_last_name(branch.test) == "TYPE_CHECKING"
            for statement in branch.body
            for node in ast.walk(statement)
        }
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = self._name_imports(node)
            elif isinstance(node, ast.Call):
                names = _list_loaded_modules(node)
            else:
                continue
            found += [Import(name, node.lineno, id(node) in typing_only) for name in names]
        return found

    def _count_lines(self, place: int) -> int:
        """Return the number of the line of a place in the text."""
        return self.text.count("\n", 0, place) + 1

    def _list_names(self, statement: str) -> list[str]:
        (node,) = ast.parse(statement.strip()).body
        assert isinstance(node, ast.Import | ast.ImportFrom)
        return self._name_imports(node)

    def _name_imports(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        return [f"{self._source(node)}.{alias.name}" for alias in node.names]

    def _source(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        up = node.level - 1 if self.is_package else node.level
        parts = self.name.split(".")
        return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])


def _find_last_name(expression: ast.expr) -> str | None:
    """Return `c` of the expressions `c` and `a.b.c`; None of all others."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else None


def _list_loaded_modules(call: ast.Call) -> list[str]:
    """Return the name of the module that `import_module("a.b")` loads; others have no name here."""
    if _find_last_name(call.func) != "import_module":
        return []
    return [
        argument.value
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def load_modules(package: Path) -> list[Module]:
    """Return every module below the folder of a package, sorted by path."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found.append(Module(".".join(parts).removesuffix(".__init__"), path))
    return found


@functools.cache
def modules() -> list[Module]:
    """Return every module of agentctl."""
    return load_modules(PACKAGE)


def part(module: str) -> str:
    """Return the part of the package that a module belongs to: `store` for `agentctl.store.x`."""
    return [*module.split("."), ""][1]


def cycles(found: list[Module], *, typing: bool = False) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others.

    Imports inside functions count; those for type checkers only if `typing` is true.
    """
    known = {module.name for module in found}
    graph = {
        module.name: {
            target
            for imported in module.imports
            if typing or not imported.typing_only
            for target in [imported.name, imported.name.rpartition(".")[0]]
            if target in known and target != module.name
            if target == imported.name or imported.name not in known
        }
        for module in found
    }
    reached = {name: _reachable(name, graph) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted(sorted(group) for group in groups)


def _reachable(name: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen = set[str]()
    waiting = list(graph[name])
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(graph[current])
    return seen
