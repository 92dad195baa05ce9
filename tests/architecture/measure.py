"""Sizes of the code and of its prose: `python -m tests.architecture.measure [CHECKOUT]`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.prose import QUESTION_WORDS, REPOSITORY, files, offences, texts
from tests.architecture.sources import Module, cycles, load_modules
from tests.architecture.test_shape import SHORTEST_FILE


def private_functions(module: Module) -> Iterator[bool]:
    """Yield for each private function of a module whether the module uses it only once."""
    uses: Counter[str] = Counter()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(
            "_(?!_)", node.name
        ):
            yield uses[node.name] == 1


def count_test_cases(root: Path) -> int:
    """Return the number of test cases that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sum("::" in line for line in done.stdout.splitlines())


def table(root: Path) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the table for a checkout of the repository."""
    modules = load_modules(root / "agentctl")
    private = [once for module in modules for once in private_functions(module)]
    docstrings = [
        text.text
        for module in modules
        for text in texts(module.path, root)
        if text.kind == "docstring"
    ]
    found = [re.match(rf"\s*(?:{QUESTION_WORDS})\b", text) for text in docstrings]
    words = Counter(
        offence.path.partition("/")[0] if "/" in offence.path else "*"
        for file in files(root=root)
        for offence in offences(file, root)
        if not re.fullmatch(QUESTION_WORDS, offence.words)
    )
    lines = {module.name: len(module.text.splitlines()) for module in modules}
    yield "lines", sum(lines.values())
    yield "lines of code", sum(module.code_lines for module in modules)
    yield "modules", len(modules)
    yield (
        f"modules under {SHORTEST_FILE} lines of code (without `__init__`)",
        sum(not module.is_package and module.code_lines < SHORTEST_FILE for module in modules),
    )
    yield "longest module, lines", max(lines.values())
    yield "private functions", len(private)
    yield "private functions used once", sum(private)
    yield "import cycles", len(cycles(modules))
    yield "import cycles with annotations", cycle_sizes(modules)
    yield "docstrings", len(docstrings)
    yield "docstrings that begin with a question word", sum(map(bool, found))
    yield "avoided words in `agentctl`", words["agentctl"]
    yield "avoided words in `tests`", words["tests"]
    yield "avoided words in pages and other files", words["docs"] + words["*"]
    yield (
        "lines of tests",
        sum(len(path.read_text().splitlines()) for path in (root / "tests").rglob("*.py")),
    )
    yield "test cases", count_test_cases(root)


def cycle_sizes(modules: list[Module]) -> str:
    """Return the number of groups of modules that refer to each other, and their packages."""
    groups = cycles(modules, typing=True)
    names = [f"{len(group)} modules of `{group[0].split('.')[1]}`" for group in groups]
    return f"{len(groups)} ({', '.join(names)})" if groups else "0"


def main() -> None:
    """Print the table as Markdown."""
    root = Path(sys.argv[1]).resolve() if sys.argv[1:] else REPOSITORY
    print("| measure | value |\n| --- | ---: |")
    for name, value in table(root):
        print(f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |")


if __name__ == "__main__":
    main()
