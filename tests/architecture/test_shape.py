"""Sizes of modules and functions, and the names that they export."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import Module, modules

LONGEST_FILE = 500
SHORTEST_FILE = 20
LONGEST_FUNCTION = 80

SHORT = {
    "agentctl.__main__": "`python -m agentctl`",
    "agentctl.records.hosts": "what the settings, servers and clients use",
    "agentctl.interop.agentos.routes": "imported for `auth explain`, without the server",
    "agentctl.runs.life.observability": "the protocol of the engine and of the export of traces",
    "agentctl.interop.agui.settings": "the table of one face, which is registered",
    "agentctl.interop.ai_sdk.settings": "the table of one face, which is registered",
    "agentctl.interop.mcp.settings": "the table of one face, which is registered",
    "agentctl.config.known_secrets": "used by the configuration and by `runtime`",
    "agentctl.interface.operations.partial": "the base of backends of other products",
    "agentctl.interface.operations.personal_data": "declarations of one part of the operations",
    "agentctl.runs.jobs.usage": "work of the sweep and of the end of a command, apart from both",
    "agentctl.work.run_scope": "imported by the public interface, without the runtime",
    "agentctl.store.visibility": "a type that all repositories use, and imports none of them",
}
"""Modules of fewer lines of code than `SHORTEST_FILE`, with the reason."""

LONG: dict[str, str] = {}
"""Modules of more lines than `LONGEST_FILE`, with the reason."""


def exported(module: Module) -> list[str] | None:
    """Return `__all__`, or None without one."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def in_order(name: str) -> tuple[int, str]:
    """Return the sort key of ruff (RUF022): constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def defined(module: Module) -> set[str]:
    """Return the names that a module binds."""
    names = {
        node.id
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


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


def test_no_module_is_long() -> None:
    lengths = {module.name: len(module.text.splitlines()) for module in modules()}
    assert {name for name, length in lengths.items() if length > LONGEST_FILE} == LONG.keys()


def test_no_module_is_short_without_a_reason() -> None:
    lengths = {module.name: module.code_lines for module in modules() if not module.is_package}
    assert {name for name, length in lengths.items() if length < SHORTEST_FILE} == SHORT.keys()


def long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"{module.name}.{node.name}: {length} lines"


def test_functions_are_short() -> None:
    assert [function for module in modules() for function in long_functions(module)] == []
