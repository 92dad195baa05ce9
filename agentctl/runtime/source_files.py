"""The source files of the code of components, for their versions (docs/versions.md).

They are the file of a module that the configuration names, and those that it imports from the same
folder of `sys.path`, read from the syntax trees: nothing is imported. Of a module of an installed
package its name and version count instead.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

MAXIMUM_FILES = 500
"""Files of the code of one component. Imports beyond them do not count."""

MAXIMUM_BYTES = 2_000_000
"""Size of a file whose imports are followed; of a larger one only the hash counts."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def read_code(references: Iterable[str]) -> dict[str, str]:
    """Return the hashes of source files by path, and the versions of packages by name.

    Paths are relative to the folder of `sys.path` in which their module is.

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
    found: dict[str, str] = {}
    waiting = [file, *_find_module(folder, module_name)]
    while waiting and len(found) < MAXIMUM_FILES:
        path = waiting.pop()
        place = path.relative_to(folder).as_posix()
        if place in found:
            continue
        try:
            text = path.read_bytes()
        except OSError:
            continue
        found[place] = hashlib.sha256(text).hexdigest()[:12]
        if path.suffix == ".py" and len(text) <= MAXIMUM_BYTES:
            package = path.parent.relative_to(folder).parts
            for name in _list_imports(text, package):
                waiting += _find_module(folder, name)
    return found


def _list_imports(text: bytes, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the absolute names of the modules that a file of a package may import."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join(filter(None, (*above, node.module)))
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _find_module(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages above it that are in a folder."""
    place = folder
    for part in name.split("."):
        for file in (place / f"{part}.py", place / part / "__init__.py"):
            if file.is_file():
                yield file
        place = place / part
