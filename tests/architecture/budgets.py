"""Bounds on the code and on the words of its pages: `python -m tests.architecture.budgets`.

The bounds are data of this module and the table "Sizes" of docs/architecture.md. `make lint` fails
if one of them is exceeded. A commit that raises a bound has the reason in its message.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.architecture.prose import REPOSITORY
from tests.architecture.sources import Module, modules, part

MAXIMUM_COMPLEX = 9
"""Functions with a complexity above that of `pyproject.toml` (`noqa: C901`)."""

MAXIMUM_CASTS = 95
"""Calls of `typing.cast`."""

MAXIMUM_WORDS = 120_000
"""Words of the pages that are not generated."""

SAME_NAMES = {
    "Database": "an entry of `[[databases]]`, and an open database",
    "Memory": "a table of the configuration; the public record of a memory",
    "Model": "an entry of `[[models]]`; the public model of each library",
}
"""Names of classes that two modules define, with the reason."""

_ROW = re.compile(r"\| `(\w+)` \| ([\d,]+) \|")


def find_complex_functions() -> list[str]:
    """Return the functions that are excepted from the maximum complexity."""
    return [
        f"{module.name}:{number}"
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if "noqa: C901" in line
    ]


def count_casts(source: Iterable[Module]) -> int:
    """Return the number of calls of `cast` in modules."""
    return sum(
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "typing.cast")
        for module in source
        if "cast(" in module.text
        for node in ast.walk(module.tree)
    )


def find_same_names(source: Iterable[Module]) -> dict[str, list[str]]:
    """Return the names of public classes that two or more modules define, with these modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in source:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module.name)
    return {name: names for name, names in found.items() if len(names) > 1}


def count_lines() -> dict[str, int]:
    """Return the lines of each package; those of the modules next to them are `agentctl`."""
    lines: dict[str, int] = defaultdict(int)
    packages = {part(module.name) for module in modules() if module.name.count(".") > 1}
    for module in modules():
        name = part(module.name)
        lines[name if name in packages else "agentctl"] += len(module.text.splitlines())
    return lines


def count_words(root: Path) -> int:
    """Return the words of the pages, without the changelog and those that are generated."""
    pages = {*root.glob("*.md"), *(root / "docs").rglob("*.md")} - {root / "CHANGELOG.md"}
    generated = root / "docs/reference"
    return sum(
        len(page.read_text(encoding="utf-8").split())
        for page in pages
        if generated not in page.parents
    )


def read_budgets() -> dict[str, int]:
    """Return the maximum lines of each package, from docs/architecture.md."""
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## Sizes\n")[2].partition("\n## ")[0]
    return {name: int(lines.replace(",", "")) for name, lines in _ROW.findall(section)}


def find_problems() -> Iterator[str]:
    """Yield each bound that is exceeded."""
    if len(complex_functions := find_complex_functions()) > MAXIMUM_COMPLEX:
        names = ", ".join(complex_functions)
        yield f"{len(complex_functions)} functions are too complex ({names}): {MAXIMUM_COMPLEX} may"
    if (casts := count_casts(modules())) > MAXIMUM_CASTS:
        yield f"{casts} calls of cast, at most {MAXIMUM_CASTS} are allowed"
    if (words := count_words(REPOSITORY)) > MAXIMUM_WORDS:
        advice = "take out what pages say twice (count: python -m tests.architecture.measure)"
        yield f"the pages have {words:,} words, at most {MAXIMUM_WORDS:,} are allowed: {advice}"
    same = find_same_names(modules())
    yield from (
        f"the class {name} has two meanings: {', '.join(same[name])}"
        for name in sorted(same.keys() - SAME_NAMES.keys())
    )
    yield from (f"{name} is one class now: remove it" for name in SAME_NAMES.keys() - same.keys())
    lines = count_lines()
    budgets = read_budgets()
    for name in sorted(lines.keys() | budgets.keys()):
        if lines.get(name, 0) > budgets.get(name, 0):
            budget = f"the table in docs/architecture.md allows {budgets.get(name, 0):,}"
            yield f"package {name} has {lines[name]:,} lines, {budget}"
        elif name not in lines:
            yield f"there is no package {name}: remove it from the table"


def main() -> int:
    """Print the problems; return 1 if there is one."""
    gc.disable()  # the trees live until the end: collections took three quarters of the time
    problems = list(find_problems())
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
