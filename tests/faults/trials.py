"""Trials of faults: each fault with all tests that can notice it.

The tests near a module run once under coverage, which finds the tests that execute each line. A
fault then needs the tests of its statement only. A fault outside of functions, such as one in a
constant, needs each test that executes any line of the module.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.copies import REPOSITORY, Copy
from tests.faults.forks import CONFTEST, Forks, Outcome
from tests.faults.mutations import Fault

__all__ = [
    "EQUIVALENT",
    "Result",
    "Trial",
    "find_deciding_lines",
    "find_function_lines",
    "find_near_tests",
    "list_modules",
    "read_equivalents",
]

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
"""Faults that no test can notice, each with its reason."""

MODULES = Path(__file__).with_name("modules.toml")
"""The near tests of modules, where those that import the module are not the right ones."""

FAST = ("-m", "check or doors", "-k", "not postgres")
"""The tests that try faults, as arguments of pytest: of these layers (tests/layers.py). The cases
with PostgreSQL are left out, because each fork would start a server."""

BASELINE_SECONDS = 7_200.0
"""Time after which the tests without a fault are ended."""

MINIMUM_SECONDS = 600.0
"""Time after which the tests of a fault are stuck, or five times their usual time if longer."""

TEST_SECONDS = 60.0
"""Time after which one test is stuck, or five times its usual time if longer."""

LONGEST_SECONDS = 5.0
"""A test that uses more CPU seconds tries no faults: it would run for most of them. The time that
it takes says little on a machine with other work."""

CONFIRMED = 5
"""Up to so many failures of a fault are repeated without the fault."""


class Result(NamedTuple):
    """The tests that noticed a fault."""

    failed: list[str]
    """Ids of the failed tests; the path of a file that could not be imported."""
    stuck: str | None
    """The id of the test that did not end; the tests after it did not run."""
    tried: int
    """The number of tests that can notice the fault."""
    cpu_seconds: float

    @property
    def is_noticed(self) -> bool:
        return bool(self.failed or self.stuck)


class Trial:
    """The trial of one module.

    Args:
        tests: paths and ids of the near tests.

    Attributes:
        source: the module without a fault.
        left_out: the tests that try no faults, with the reason: they fail without a fault, or take
            long.
    """

    def __init__(self, copy: Copy, forks: Forks, module: Path, tests: Sequence[str]) -> None:
        self._copy = copy
        self._forks = forks
        self._module = module
        self.source = (copy.root / module).read_text()
        self._tests = tests
        self._seconds: dict[str, float] = {}
        self._reached: dict[int, list[str]] = {}
        self.left_out: dict[str, str] = {}
        self._run_without_fault()

    def _run_without_fault(self) -> None:
        """Run all tests twice: measured, and as the tests of a fault run.

        Raises:
            SystemExit: the tests did not end.
        """
        measured = self._forks.run(
            self._tests, seconds=BASELINE_SECONDS, measured=self._module, options=FAST
        )
        self._forks.import_libraries()
        usual = self._forks.run(self._tests, seconds=BASELINE_SECONDS, options=FAST)
        for outcome in (measured, usual):
            if outcome.stuck is not None:
                raise SystemExit(f"{outcome.stuck}: no end without a fault: {outcome.last_line}")
            if CONFTEST in outcome.failed:
                raise SystemExit(f"no test begins without a fault: {outcome.last_line}")
            for name, why in outcome.failed.items():
                self.left_out.setdefault(name, f"fails without a fault: {why}")
        slow = {name for name, seconds in usual.used.items() if seconds > LONGEST_SECONDS}
        self.left_out |= dict.fromkeys(sorted(slow - self.left_out.keys()), "takes long")
        self._seconds = usual.seconds
        self._reached = measured.reached

    def find_tests(self, fault: Fault) -> list[str]:
        """Return the ids of the tests that can notice a fault, in the order of a run."""
        lines = find_deciding_lines(self.source, fault.line)
        if lines is None:
            lines = self._reached.keys()
        chosen = self._find_reaching(lines)
        if not chosen and not self._reached.keys().isdisjoint(lines):
            # The statement is executed while the module is imported, which all tests need.
            chosen = self._find_reaching(self._reached)
        elif not chosen:
            # Coverage loses the lines that a coroutine executes after an exception was thrown into
            # the one that it awaits, as by a timeout.
            chosen = self._find_reaching(find_function_lines(self.source, fault.line))

        return [name for name in self._seconds if name in chosen and name not in self.left_out]

    def _find_reaching(self, lines: Iterable[int]) -> set[str]:
        """Return the ids of the tests that execute one of some lines."""
        return {name for line in lines for name in self._reached.get(line, ())}

    def try_fault(self, fault: Fault, only: Collection[str] | None = None) -> Result:
        """Run the tests that can notice a fault.

        Args:
            only: of these tests, the ids of those to run.

        Raises:
            SystemExit: a test does not end without the fault either.
        """
        names = self.find_tests(fault)
        if only is not None:
            names = [name for name in names if name in only]
        if not names:
            return Result([], None, 0, 0.0)

        self._copy.write(self._module, fault.source)
        outcome = self._run(names)
        self._copy.write(self._module, self.source)
        used = outcome.cpu_seconds
        failed = list(outcome.failed)
        repeated = [name for name in (*failed, outcome.stuck) if name in self._seconds]
        if 0 < len(repeated) <= CONFIRMED:
            without = self._run(repeated)
            used += without.cpu_seconds
            failed = [name for name in failed if name not in without.failed]
            if without.stuck is not None:
                raise SystemExit(
                    f"{without.stuck}: no end without a fault: the machine is too busy"
                )
        return Result(failed, outcome.stuck, len(names), used)

    def _run(self, names: Sequence[str]) -> Outcome:
        usual = [self._seconds[name] for name in names]
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        return self._forks.run(
            files,
            only=names,
            seconds=max(MINIMUM_SECONDS, 5 * sum(usual)),
            test_seconds=max(TEST_SECONDS, 5 * max(usual)),
            options=FAST,
        )


def find_deciding_lines(source: str, line: int) -> range | list[int] | None:
    """Return the lines of the statement with a line; None if it is outside of functions.

    Of a statement that contains others, such as `if`, these are the lines of none of the others.
    Defaults of a function are evaluated with the module, but belong to the lines of its body.
    """
    function: ast.AST | None = None
    statement: ast.stmt | None = None
    node: ast.AST = ast.parse(source)
    while True:
        inner = [
            child
            for child in _list_statements(node)
            if child.lineno <= line <= (child.end_lineno or child.lineno)
        ]
        if not inner:
            break
        node = inner[0]
        statement = node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
    if function is None or statement is None:
        return None
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return lines
    contained = {
        number
        for child in _list_statements(statement)
        for number in range(child.lineno, (child.end_lineno or child.lineno) + 1)
    }
    return [number for number in lines if number not in contained]


def find_function_lines(source: str, line: int) -> range:
    """Return the lines of the body of the innermost function with a line; none if there is none."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not functions:
        return range(0)
    innermost = max(functions, key=lambda node: node.lineno)
    return range(innermost.body[0].lineno, (innermost.end_lineno or innermost.lineno) + 1)


def _list_statements(node: ast.AST) -> list[ast.stmt]:
    """Return the statements directly in a node, those of `except` and `case` included."""
    found = list[ast.stmt]()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            found += _list_statements(child)
    return found


def read_equivalents(module: str) -> set[tuple[str, str]]:
    """Return the faults of a module that change nothing, as the old and the new line."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("fault", [])
    return {(each["old"], each["new"]) for each in listed if each["module"] == module}


def list_modules() -> list[Path]:
    """Return the modules of the reference."""
    return [Path(module) for module in tomllib.loads(MODULES.read_text())]


def find_near_tests(module: Path) -> list[str]:
    """Return the near tests of a module.

    These are the ones that `modules.toml` lists, or the test files that import the module or a
    helper that does; its own folder is first.
    """
    listed = tomllib.loads(MODULES.read_text())
    if str(module) in listed:
        return list(listed[str(module)]["tests"])
    tests = REPOSITORY / "tests"
    files = {
        path.relative_to(REPOSITORY): path.read_text()
        for path in sorted(tests.rglob("*.py"))
        if not path.is_relative_to(tests / "faults")
    }
    names = [_dotted(module)]
    near: dict[str, None] = {}
    for name in names:
        for path, text in files.items():
            if not _has_import(text, name):
                continue
            if path.name.startswith("test_"):
                near[str(path)] = None
            elif path.name != "conftest.py" and (helper := _dotted(path)) not in names:
                names.append(helper)
    folder = f"tests/{module.parts[1]}/"
    return sorted(near, key=lambda path: not path.startswith(folder))


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def _has_import(text: str, name: str) -> bool:
    """Return True if the text of a module names another module, or imports it from its package."""
    package, _, last = name.rpartition(".")
    # A helper of the suite is sought in a thousand files: few get beyond these comparisons.
    is_named = name in text and re.search(rf"\b{re.escape(name)}\b", text) is not None
    if is_named or f"from {package} import " not in text:
        return is_named
    return re.search(rf"from {re.escape(package)} import [^\n]*\b{last}\b", text) is not None
