"""Imports run downward only, and nowhere in a circle (docs/internals/architecture.md)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import Module, cycles, load_modules, modules, part
from tests.kit.conditions import PATIENCE
from tests.kit.process import without_coverage

BASE = {
    "errors", "work", "records", "extensions", "interface", "config",
}  # fmt: skip
LOWER = BASE | {"auth", "store", "runtime", "transcripts"}

BELOW: dict[str, set[str]] = {
    "": {"agents", "auth", "config", "interface", "work", "runtime"},
    "agno": {"runtime"},
    "langchain": {"runtime"},
    "openai_agents": {"runtime"},
    "pydantic_ai": {"records", "runtime"},
    "agents": set(),
    "errors": set(),
    "work": {"errors"},
    "records": {"errors"},
    "extensions": {"records"},
    "interface": {"errors", "records"},
    "config": {"errors", "records", "extensions"},
    "transcripts": {"errors", "interface", "records"},
    "auth": BASE,
    "store": BASE,
    "runtime": BASE | {"agents"},
    "webhooks": {"config", "errors", "records", "store", "work"},
    "runs": LOWER | {"agents", "webhooks"},
    "telemetry": {"config", "records", "runs", "runtime", "store", "webhooks"},
    "service": LOWER | {"runs", "telemetry", "webhooks"},
    "admin": LOWER | {"runs", "webhooks", "service"},
    "server": LOWER | {"runs", "telemetry", "webhooks", "service"},
    "remote": {"errors", "records", "interface"},
    "client": {"errors", "records", "interface", "remote"},
    "cli": LOWER | {"runs", "webhooks", "service", "admin", "server", "remote"},
    "interop": LOWER | {"runs", "service", "server"},
    "__main__": {"cli"},
}
"""The parts of the package that each part may import, besides itself."""

EXTENSIONS = "agentctl.interop"
"""The package whose modules the core loads by the registration in `agentctl.extensions` only."""

HEAVY = (
    "apsw",
    "asyncpg",
    "cryptography",
    "fastapi",
    "httpx2",
    "jwt",
    "opentelemetry",
    "orjson",
    "platformdirs",
    "prometheus_client",
    "pydantic",
    "pydantic_ai",
    "rich.console",
    "starlette",
    "tomllib",
    "uvicorn",
)


def test_modules_import_from_lower_layers_only() -> None:
    assert [
        f"{module.name}, line {imported.line}: {imported.name}"
        for module in modules()
        for imported in module.imports
        if imported.name.startswith("agentctl.") and part(imported.name) in BELOW
        if part(imported.name) not in BELOW.get(part(module.name), set()) | {part(module.name)}
    ] == []


def test_only_the_registration_names_modules_of_extensions() -> None:
    assert {
        module.name
        for module in modules()
        # The parser takes long, so it reads few modules.
        if EXTENSIONS in module.text and not module.name.startswith(EXTENSIONS)
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(EXTENSIONS)
    } == {"agentctl.extensions"}


def test_kit_imports_no_folder_of_tests() -> None:
    tests = Path(__file__).parents[1]
    folders = {f"tests.{path.name}" for path in tests.iterdir() if path.is_dir()} - {"tests.kit"}
    modules_of_kit = load_modules(tests / "kit")
    names = [imported.name for module in modules_of_kit for imported in module.imports]
    assert any(name.startswith("tests.kit.") for name in names)
    assert [name for name in names if ".".join(name.split(".")[:2]) in folders] == []


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part(module.name) for module in modules()} - {""}
    assert parts <= BELOW.keys()


ROOMS = {
    "agentctl.interface": (
        "requirements",
        "responses",
        "declarations",
        "requests",
        "bodies",
        "pages",
        "operations",
    ),
    "agentctl.runs": (
        "states",
        "log",
        "desk",
        "workers",
        "gate",
        "life",
        "engine",
        "follow",
        "jobs",
    ),
    "agentctl.service": (
        "audit_log",
        "documents",
        "reads",
        "hosting",
        "family",
        "runs",
        "operations",
        "jobs",
        "service",
    ),
}
"""The rooms of packages: each may import itself and those before it."""


def room(module: str) -> str:
    """Return the room of a package that a module belongs to: `log` for `agentctl.runs.log.x`."""
    return [*module.split("."), "", ""][2]


def test_rooms_import_earlier_rooms_of_their_package_only() -> None:
    assert [
        f"{module.name}, line {imported.line}: {imported.name}"
        for package, rooms in ROOMS.items()
        for module in modules()
        if module.name.startswith(f"{package}.")
        for imported in module.imports
        if imported.name.startswith(f"{package}.")
        if rooms.index(room(imported.name)) > rooms.index(room(module.name))
    ] == []


def test_every_module_of_a_package_with_rooms_has_one() -> None:
    found = {module.name for module in modules()}
    for package, rooms in ROOMS.items():
        inside = {room(name) for name in found if name.startswith(f"{package}.")}
        assert inside == set(rooms)


def test_no_modules_import_each_other() -> None:
    assert cycles(modules()) == []


def test_no_modules_refer_to_each_other_in_annotations() -> None:
    assert cycles(modules(), typing=True) == []


def test_one_module_writes_the_end_of_a_run() -> None:
    """`runs.finish` is the statement of an end: what belongs to an end is written beside it."""
    assert {
        module.name
        for module in modules()
        if "runs.finish" in module.text
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if (node.value.id, node.attr) == ("runs", "finish")
    } == {"agentctl.runs.desk.end"}


SINGLE_PLACES = {
    "uvicorn": ("agentctl.server.transport.",),
    # The client of model endpoints has its own transport (decision 48).
    "httptools": ("agentctl.server.transport.", "agentctl.runtime.models.stream_transport"),
    "fastapi": ("agentctl.server.",),
}
"""The modules, or the beginnings of their names, that may import a library.

They use private interfaces of it, which tests/server/test_private_interfaces.py lists.
"""


def test_each_library_is_imported_in_one_place() -> None:
    assert [
        f"{module.name}, line {imported.line}: {imported.name}"
        for module in modules()
        for imported in module.imports
        if (places := SINGLE_PLACES.get(imported.name.partition(".")[0])) is not None
        if not module.name.startswith(places)
        # The package has declarations for type checkers.
        if module.name != "agentctl"
    ] == []


OWNER_OF_PRIVATE = re.compile(r"\b(\w+)\._[A-Za-z]")
ALIAS = re.compile(r" as (\w+)")


def private_imports(module: Module) -> Iterator[str]:
    """Yield the private names that a module takes from modules of other folders."""
    known = {other.name: other for other in modules()}

    for imported in module.imports:
        source_name, _, name = imported.name.rpartition(".")
        if is_private(name) and source_name in known:
            yield from outside(module, known[source_name], name, imported.line)

    # The parser takes long, so it reads the few modules with a private member of an imported name.
    imported_names = {imported.name.rpartition(".")[2] for imported in module.imports}
    imported_names.update(ALIAS.findall(module.text))
    if imported_names.isdisjoint(OWNER_OF_PRIVATE.findall(module.text)):
        return

    aliases: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    for node in module.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            source = known.get(aliases.get(node.value.id, ""))
            if source is not None and is_private(node.attr):
                yield from outside(module, source, node.attr, node.lineno)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def outside(module: Module, source: Module, name: str, line: int) -> Iterator[str]:
    if module.package != source.package:
        yield f"{module.name}, line {line}: {source.name}.{name}"


def test_private_names_are_imported_within_a_folder_only() -> None:
    assert [found for module in modules() for found in private_imports(module)] == []


def test_one_module_converts_values_by_their_annotations() -> None:
    assert {module.name for module in modules() if "get_origin" in module.text} == {
        "agentctl.records.value_types",
        "agentctl.auth.keys.remote",  # the origin of a URL
        "agentctl.runtime.runners.pydantic_ai",  # the types of a union of pydantic-ai
        "agentctl.interface.declarations",  # documents and streams
        "agentctl.remote.client",  # lists are JSON arrays
        "agentctl.runtime.context",  # annotations of code of users
        "agentctl.runtime.runners.declared_types",  # annotations of code of users
        "agentctl.server.openapi.parameters",  # declarations for FastAPI
    }


def test_the_texts_have_all_imports_of_the_syntax_trees() -> None:
    for module in modules():
        assert not set(module.imports_of_tree) - set(module.imports), module.name


def test_the_start_of_the_command_line_stays_light() -> None:
    loaded = list_loaded("agentctl.cli.app")
    assert [name for name in HEAVY if name in loaded] == []


def list_loaded(module: str) -> list[str]:
    """Return the modules that a process has loaded once it has imported one of them."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        env=without_coverage(os.environ),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout.split()


EXECUTING = (
    "agentctl.agents",
    "agentctl.runs.desk",
    "agentctl.runs.engine",
    "agentctl.runs.follow",
    "agentctl.runs.gate",
    "agentctl.runs.jobs",
    "agentctl.runs.life",
    "agentctl.runs.workers",
    "agentctl.runtime.context",
    "agentctl.runtime.models",
    "agentctl.runtime.runners",
    "agentctl.runtime.transcript",
    "agentctl.webhooks",
)
"""The packages that execute runs, which a read never does."""


def test_the_reads_of_a_command_load_nothing_that_executes_runs() -> None:
    loaded = list_loaded("agentctl.service.reads.reader")
    # pydantic checks the configuration.
    libraries = {name for name in HEAVY if name not in ("orjson", "pydantic", "tomllib")}
    assert [name for name in loaded if name.startswith(EXECUTING) or name in libraries] == []
    assert "agentctl.interface.operations" not in loaded


def test_the_commands_of_sessions_load_no_declarations_of_operations() -> None:
    assert "agentctl.interface.operations" not in list_loaded("agentctl.cli.commands.sessions")


STORED = ("agentctl.records.runs", "agentctl.service.documents", "agentctl.store.listing")
"""Modules of the reads of sessions and runs."""


def test_the_reads_of_components_load_no_reads_of_sessions_and_runs() -> None:
    loaded = list_loaded("agentctl.service.reads.components")
    assert [name for name in loaded if name.startswith((*EXECUTING, *STORED))] == []


@pytest.mark.parametrize(
    ("source", "typing", "is_cycle"),
    [
        ("if TYPE_CHECKING:\n    from package.a import call\n", False, False),
        ("if TYPE_CHECKING:\n    from package.a import call\n", True, True),
        ('def answer():\n    return import_module("package.a").call\n', False, True),
        ('def answer():\n    return importlib.import_module("package.a").call\n', False, True),
        ("def answer(name):\n    return import_module(name).call\n", False, False),
    ],
    ids=["at run time", "in annotations", "by import_module", "by importlib", "by a variable"],
)
def test_a_cycle_is_found(tmp_path: Path, source: str, typing: bool, is_cycle: bool) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def call():\n    from package.b import answer\n")
    (package / "b.py").write_text(source)
    expected = [["package.a", "package.b"]] if is_cycle else []
    assert cycles(load_modules(package), typing=typing) == expected
