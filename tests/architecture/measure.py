"""Sizes and copies in the code: `python -m tests.architecture.measure [CHECKOUT]`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.architecture.budgets import count_casts, count_words, find_same_names
from tests.architecture.prose import REPOSITORY
from tests.architecture.sources import Module, cycles, load_modules
from tests.architecture.test_shape import SHORTEST_FILE

AGENTOS_ROOM = "agentctl.interop.agentos"
"""The package that may name AgentOS."""

EVENT_PART = re.compile(
    "(Team|Workflow|Step|Run|Tool|Call|Reasoning)*"
    "(Content|Delta|Started|Completed|Cancelled|Error|Progress)*"
)
"""The parts that names of run events consist of."""

RUN_FIELDS = {
    "dependencies",
    "metadata",
    "output_schema",
    "request_id",
    "session_id",
    "session_state",
    "user_id",
}
"""Fields of a run that are known at its start."""

COPIED_FIELDS = 5
"""A class with this many `RUN_FIELDS` copies the run."""

NAMED_FIELDS = ("cancel_reason", "holding", "paused_at", "reasoning_content", "stopped_at")
"""Fields of a run whose modules are counted."""

BY_HAND = [f"files to change for {change}" for change in ("an event", "a filter", "an operation")]
"""Measured by hand: make the change in a throwaway branch and count its files."""


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


def names_agentos(module: Module) -> bool:
    """Return True if a name or a text of the module contains AgentOS, in any case."""
    values = (
        value
        for node in ast.walk(module.tree)
        for _, field in ast.iter_fields(node)
        for value in (field if isinstance(field, list) else [field])
    )
    return any(isinstance(value, str) and "agentos" in value.lower() for value in values)


def takes_event_names_apart(module: Module) -> bool:
    """Return True if the module tests, cuts, slices or matches a part of an event's name."""
    return any(
        isinstance(node, ast.Call) and (_cuts_event_name(node) or _matches_event_name(node))
        for node in ast.walk(module.tree)
    ) or any(
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Slice)
        and re.fullmatch(r"(.*\.)?event[._]name", ast.unparse(node.value))
        for node in ast.walk(module.tree)
    )


def _cuts_event_name(call: ast.Call) -> bool:
    """Return True for calls such as `name.endswith("Started")` and `name.startswith(x._prefix)`."""
    function = call.func
    if (
        not isinstance(function, ast.Attribute)
        or function.attr not in ("endswith", "startswith", "removeprefix", "removesuffix")
        or not re.fullmatch(r"(.*\.)?(name|event|event_name)", ast.unparse(function.value))
    ):
        return False
    return any(
        (isinstance(node, ast.Attribute) and re.search("prefix|suffix", node.attr))
        or (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value
            and EVENT_PART.fullmatch(node.value)
        )
        for node in ast.walk(call.args[0])
    )


def _matches_event_name(call: ast.Call) -> bool:
    """Return True for calls of `re` whose pattern contains parts of the names of events."""
    pattern = call.args[0] if call.args else None
    return (
        ast.unparse(call.func).startswith("re.")
        and isinstance(pattern, ast.Constant)
        and re.search(r"\b(Team|Run|Step|ToolCall|Workflow)[^a-z ]", str(pattern.value)) is not None
    )


def walks_annotations(module: Module) -> bool:
    """Return True if the module follows annotations down to their literals to convert values."""
    names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    return {"get_origin", "get_args", "Literal"} <= names


def copies_of_the_run(module: Module) -> Iterator[str]:
    """Yield the classes that have most fields of a run, except for records with its content."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            fields = set(_list_fields(node))
            if len(fields & RUN_FIELDS) >= COPIED_FIELDS and "content" not in fields:
                yield node.name


def _list_fields(record: ast.ClassDef) -> Iterator[str]:
    """Yield the annotated fields, the properties and the attributes of a class."""
    for node in record.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.FunctionDef) and any(
            "property" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            yield node.name
    for part in ast.walk(record):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr


def list_modules_with_one_importer(modules: list[Module]) -> list[str]:
    """Return the names of the modules that one other module of the package imports."""
    names = {module.name for module in modules if not module.is_package}
    importers: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for item in module.imports:
            for name in (item.name, item.name.rpartition(".")[0]):
                if name in names and name != module.name:
                    importers[name].add(module.name)
    return sorted(name for name, found in importers.items() if len(found) == 1)


def count_complex_functions(root: Path) -> int:
    """Return the number of functions with a complexity above 10, with those that are excepted."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--exit-zero"]
    options = ["--select", "C901", "--output-format", "concise", "agentctl"]
    done = subprocess.run(
        [*command, *options], cwd=root, capture_output=True, text=True, check=True
    )
    return sum(" C901 " in line for line in done.stdout.splitlines())


def count_test_cases(root: Path) -> int:
    """Return the number of test cases that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sum("::" in line for line in done.stdout.splitlines())


def table(root: Path) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the table for a checkout of the repository."""
    modules = load_modules(root / "agentctl")
    private = [once for module in modules for once in private_functions(module)]
    lines = {module.name: len(module.text.splitlines()) for module in modules}

    def list_modules(matches: Callable[[Module], bool]) -> list[str]:
        return [module.name for module in modules if matches(module)]

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
    yield (
        f"modules that name AgentOS outside `{AGENTOS_ROOM}`",
        list_modules(lambda it: not it.name.startswith(AGENTOS_ROOM) and names_agentos(it)),
    )
    yield "modules that take names of events apart", list_modules(takes_event_names_apart)
    yield "modules that walk annotations", list_modules(walks_annotations)
    yield (
        "classes that copy a run",
        [f"{module.name}.{name}" for module in modules for name in copies_of_the_run(module)],
    )
    yield "modules with one importer", list_modules_with_one_importer(modules)
    yield "functions with a complexity above 10", count_complex_functions(root)
    yield "calls of `cast`", count_casts(modules)
    yield "names of classes with two meanings", list(find_same_names(modules))
    for field in NAMED_FIELDS:
        yield (
            f"modules that name the field `{field}`",
            [module.name for module in modules if re.search(rf"\b{field}\b", module.text)],
        )
    yield from ((name, "by hand") for name in BY_HAND)
    yield "words of pages that are not generated", count_words(root)
    yield (
        "lines of tests",
        sum(len(path.read_text().splitlines()) for path in (root / "tests").rglob("*.py")),
    )
    yield "test cases", count_test_cases(root)


def main() -> None:
    """Print the table as Markdown; `--list` prints the names of what it counts, too."""
    arguments = [word for word in sys.argv[1:] if word != "--list"]
    rows = list(table(Path(arguments[0]).resolve() if arguments else REPOSITORY))
    print("| measure | value |\n| --- | ---: |")
    for name, value in rows:
        count = len(value) if isinstance(value, list) else value
        print(f"| {name} | {count:,} |" if isinstance(count, int) else f"| {name} | {count} |")
    if "--list" in sys.argv:
        for name, value in rows:
            if isinstance(value, list):
                print(f"\n{name}:", *value, sep="\n  ")


if __name__ == "__main__":
    main()
