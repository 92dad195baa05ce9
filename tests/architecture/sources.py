"""The modules of the package as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Module", "modules"]

PACKAGE = Path(__file__).parents[2] / "agentctl"


@dataclass(frozen=True)
class Module:
    """One source file and what it is called."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every module or name of a module that is imported, also inside functions, with its line.

        `from a import b` counts as `a.b`: the caller looks at prefixes only.
        """
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                yield from ((f"{source}.{alias.name}", node.lineno) for alias in node.names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        up = node.level - 1 if self.is_package else node.level
        parts = self.name.split(".")
        return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])


def modules() -> list[Module]:
    """Every module of the package, by name."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found.append(Module(".".join(parts).removesuffix(".__init__"), path))
    return found
