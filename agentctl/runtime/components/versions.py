"""The versions of components: hashes of everything that decides how they answer (docs/versions.md).

The version of a component is the hash of its resolved configuration: of its keys without labels and
keys of operation, its model by provider and name, its tools by their schemas, and the source files
of its code. Members and steps count with their own versions. Secrets, paths of the machine, times
of files and the order of keys have no effect, and neither has a key with its default value: a
release of agentctl with a new key changes no version.

The source files are the file of a module that the configuration names, and those that it imports
from the same folder of `sys.path`, read from the syntax trees: nothing is imported. Of a module of
an installed package its name and version count instead. Files of agentctl do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from agentctl.config.mcp_servers import parse_mcp_reference
from agentctl.errors import InvalidConfiguration
from agentctl.records.components import ChangeRecord
from agentctl.runtime.component import Component, ComponentVersion
from agentctl.runtime.components.records import list_own_tools

if TYPE_CHECKING:
    from agentctl.config.settings import Model
    from agentctl.runtime.components.catalog import Catalog


MAXIMUM_FILES = 500
"""Files of the code of one component. Imports beyond them do not count."""

MAXIMUM_BYTES = 2_000_000
"""Size of a file whose imports are followed; of a larger one only the hash counts."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def read_code(references: Iterable[str]) -> dict[str, str]:
    """Return the hashes of source files by path, and the versions of packages by name.

    Paths are relative to the folder of `sys.path` that has their module.

    Args:
        references: names of the form `package.module:name`, whose modules are imported; empty ones
            are left out.
    """
    from importlib.metadata import packages_distributions, version

    code: dict[str, str] = {}
    for module_name in sorted({name.partition(":")[0] for name in references if name}):
        top = module_name.partition(".")[0]
        file = getattr(sys.modules.get(module_name), "__file__", None)
        if file is None:
            code[f"module {module_name}"] = "without source"
        elif top == "agentctl" or not _INSTALLED.isdisjoint(Path(file).parts):
            packages = packages_distributions().get(top, ())
            code |= {f"package {name}": version(name) for name in packages}
        else:
            code |= _read_files(module_name, Path(file))
    return code


def _read_files(module_name: str, file: Path) -> dict[str, str]:
    """Return the hashes of a file and of those that it imports from its folder of `sys.path`."""
    folder = file.parents[module_name.count(".") + (file.stem == "__init__")]

    hashes: dict[str, str] = {}
    pending_files = [file, *_find_module(folder, module_name)]
    while pending_files and len(hashes) < MAXIMUM_FILES:
        path = pending_files.pop()
        place = path.relative_to(folder).as_posix()

        if place in hashes:
            continue

        try:
            text = path.read_bytes()
        except OSError:
            continue

        digest = hashlib.sha256(text).hexdigest()
        hashes[place] = digest[:12]

        if path.suffix == ".py" and len(text) <= MAXIMUM_BYTES:
            package = path.parent.relative_to(folder).parts
            for name in _recall_imports(digest, text, package):
                if name.partition(".")[0] != "agentctl":
                    pending_files += _find_module(folder, name)

    return hashes


_imports: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
"""The imports of the files that were parsed, by the digest of the file and its package."""


def _recall_imports(digest: str, text: bytes, package: tuple[str, ...]) -> tuple[str, ...]:
    """Return the imports of a file, which is parsed once in a process.

    Many agents have the same module. To parse it for each of them would take most of the time in
    which a server starts: 8 ms for a module of 400 lines.
    """
    key = (digest, package)
    if key not in _imports:
        _imports[key] = tuple(_list_imports(text, package))
    return _imports[key]


def _list_imports(text: bytes, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the absolute names of the modules that a file of a package may import."""
    try:
        try:
            tree = ast.parse(text)
        except SystemError:
            # CPython before 3.11.9, if another thread parses meanwhile (gh-106905).
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return

    importers = _find_importers(tree)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) in importers:
            yield from _read_import_call(node, package)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join(filter(None, (*above, node.module)))
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


_IMPORTERS = frozenset({"import_module", "__import__", "run_module", "resolve_name"})
"""Functions of `importlib`, `runpy` and `pkgutil` whose first argument names a module."""


def _find_importers(tree: ast.AST) -> set[str]:
    """Return the names of the functions that import a module in a file, other names included."""
    importers = set(_IMPORTERS)

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            importers |= {
                alias.asname for alias in node.names if alias.asname and alias.name in _IMPORTERS
            }
        elif isinstance(node, ast.Assign) and _name_of(node.value) in _IMPORTERS:
            importers |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    return importers


def _name_of(node: ast.expr) -> str:
    """Return the last name of `a` and of `b.a`; empty for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _read_import_call(node: ast.Call, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the module that a call such as `importlib.import_module("name")` imports.

    Only a constant is known without running the code (docs/versions.md). A relative name is of the
    package in the second argument if that is a constant, else of the file's own package.
    """
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    texts = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
    if not texts or not isinstance(texts[0], str):
        return

    name = texts[0].partition(":")[0]
    relative = name.lstrip(".")

    level = len(name) - len(relative)
    if level and len(texts) > 1 and isinstance(texts[1], str):
        package = tuple(texts[1].split("."))
    above = package[: len(package) - level + 1] if level else ()

    if relative and "/" not in relative:
        yield ".".join((*above, relative))


def _find_module(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages above it that are in a folder."""
    place = folder
    for part in name.split("."):
        for file in (place / f"{part}.py", place / part / "__init__.py"):
            if file.is_file():
                yield file
        place = place / part


VERSION_LENGTH = 12
"""Hexadecimal digits of a version: the beginning of a SHA-256."""

_NEUTRAL = (
    "id", "name", "description", "database", "on_busy", "on_change", "next", "percent",
    "retention_days", "trace", "durable", "breaker",
)  # fmt: skip
"""Keys of a component that change no answer and no approval."""

_RESOLVED = (
    "model", "tools", "external_tools", "members", "steps", "memory", "summary", "output",
)  # fmt: skip
"""Keys of a component whose entries are resolved."""

_NEUTRAL_OF_MODEL = ("id", "base_url", "api_key_env", "retries", "price", "fallbacks", "breaker")


def describe_version(catalog: Catalog, component: Component) -> ComponentVersion | None:
    """Return the version of a component, computed once in a process; imports its code.

    None if its code is not usable.
    """
    versions = catalog.versions
    key = component.key

    if key not in versions:
        try:
            configuration = dump_sorted(_Describer(catalog).describe(component))
            versions[key] = ComponentVersion(hash_text(configuration), configuration)
        except InvalidConfiguration:
            versions[key] = None
    return versions[key]


def find_version(catalog: Catalog, component: Component) -> str | None:
    """Return the version of a component; None if its code is not usable."""
    version = describe_version(catalog, component)
    return None if version is None else version.version


class _Describer:
    """Describes components for their versions."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def describe(self, component: Component) -> dict[str, Any]:
        """Return the resolved configuration of a component."""
        described = _read_keys(component.spec, (*_NEUTRAL, *_RESOLVED))

        if component.kind == "workflow":
            steps = self._catalog.steps(component)
            described["steps"] = [{"name": name, **self._name(step)} for name, step in steps]
            return described

        described |= self._describe_worker(component)

        if component.kind == "team":
            members = self._catalog.members(component).values()
            described["members"] = {
                # The instructions of the leader have the names and the descriptions.
                member.id: {
                    "name": member.spec.name,
                    "description": member.description,
                    **self._name(member),
                }
                for member in members
            }

        return described

    def _name(self, component: Component) -> dict[str, Any]:
        return {component.kind: component.id, "version": find_version(self._catalog, component)}

    def _describe_worker(self, component: Component) -> dict[str, Any]:
        catalog = self._catalog
        spec = component.worker

        if catalog.is_hosted(component):
            catalog.hosted_runner(component)  # its module is imported
            return {"code": read_code((component.agent.object, component.agent.deps))}

        described: dict[str, Any] = {"model": self._describe_model(catalog.model(component))}

        for name in ("memory", "summary"):
            table = getattr(spec, name)
            if table != type(table)():
                described[name] = _read_keys(table, {"model"}) | self._describe_chosen(table.model)

        described["tools"] = {tool["name"]: tool for tool in list_own_tools(catalog, component)}
        if servers := self._describe_servers(spec.tools):
            described["mcp"] = servers

        code = [name for name in spec.tools if parse_mcp_reference(name) is None]

        if component.kind == "agent" and component.agent.output:
            schema = catalog.output_schema(component, None)
            described["output"] = schema and schema.json_schema
            code.append(component.agent.output)

        if code:
            described["code"] = read_code(code)

        return {name: value for name, value in described.items() if value not in ({}, None)}

    def _describe_chosen(self, model_id: str) -> dict[str, Any]:
        model = self._catalog.find_model(model_id)
        return {} if model is None else {"model": self._describe_model(model)}

    def _describe_model(self, model: Model) -> dict[str, Any]:
        """Return what identifies a model; the address of its endpoint as a hash only."""
        described = _read_keys(model, _NEUTRAL_OF_MODEL)
        if model.base_url:
            described["endpoint"] = hash_text(model.base_url)
        fallbacks = filter(None, map(self._catalog.find_model, model.fallbacks))
        if names := [self._describe_model(fallback) for fallback in fallbacks]:
            described["fallbacks"] = names
        return described

    def _describe_servers(self, references: Iterable[str]) -> dict[str, str]:
        """Return a hash of the place of each MCP server; its tools may change without a restart."""
        servers = {server.id: server for server in self._catalog.settings.mcp_servers}
        described = {}

        for reference in references:
            reference_parts = parse_mcp_reference(reference)
            server = None if reference_parts is None else servers.get(reference_parts.server)

            if server is not None:
                command = PurePath(server.command).name
                place = [command, *server.args, server.url, sorted(server.allow_tools)]
                described[reference] = hash_text(dump_sorted(place))

        return described


def _read_keys(spec: Any, without: Iterable[str]) -> dict[str, Any]:
    """Return the keys of a table that do not have their default value."""
    keys: dict[str, Any] = {}

    for field in fields(spec):
        value = getattr(spec, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()

        if field.name in without or value == default:
            continue
        keys[field.name] = _read_keys(value, ()) if is_dataclass(value) else value

    return keys


def dump_sorted(value: Any) -> str:
    """Return a value as JSON that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def hash_text(text: str) -> str:
    """Return the hash of a text in the form of a version."""
    return hashlib.sha256(text.encode()).hexdigest()[:VERSION_LENGTH]


def describe_tool(configuration: Mapping[str, Any], name: str) -> Any:
    """Return the part of a configuration that decides what a call of a tool does."""
    definition = configuration.get("tools", {}).get(name)
    if definition is None:
        # A tool of an MCP server, of which the configuration has the place.
        definition = configuration.get("mcp")
    return [configuration.get("code"), definition]


def find_changes(before: Any, after: Any, path: str = "") -> list[ChangeRecord]:
    """Return the differences of two configurations: the path and both values, None if missing."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [{"path": path, "before": before, "after": after}]

    changes: list[ChangeRecord] = []
    for name in sorted(before.keys() | after.keys()):
        place = f"{path}.{name}" if path else name
        changes += find_changes(before.get(name), after.get(name), place)
    return changes
