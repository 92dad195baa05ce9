"""Faults of a module: small changes of its source, each of which a test should notice.

A fault replaces one part of the source: a sign, an operator, a condition, a number, an argument, a
statement, a result, a word of SQL. Annotations, decorators, docstrings, log calls and other texts
stay.
"""

from __future__ import annotations

import ast
import contextlib
import random
import re
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Fault", "choose_faults", "find_faults"]

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}

_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "+"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}

_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}

_SQL = {
    "<=": "<",
    ">=": ">",
    "<": "<=",
    ">": ">=",
    "<>": "=",
    "=": "<>",
    "AND": "OR",
    "OR": "AND",
    "ASC": "DESC",
    "DESC": "ASC",
    "IS NULL": "IS NOT NULL",
    "IS NOT NULL": "IS NULL",
    "NOT EXISTS": "EXISTS",
    "EXISTS": "NOT EXISTS",
    "NOT IN": "IN",
    "min": "max",
    "max": "min",
}

_SQL_WORDS = re.compile(
    r"\b(?:IS NOT NULL|IS NULL|NOT EXISTS|EXISTS|NOT IN|AND|OR|ASC|DESC)\b|\b(?:min|max)(?=\()"
    r"|(?<![<>=!])(?:<=|>=|<>|<|>|=)(?![<>=])"
)

_IS_SQL = re.compile(r"\b(?:SELECT|UPDATE|INSERT|DELETE|WHERE|JOIN|ORDER BY)\b|[<>=] \(?:\w")

_SIGNS = ("<", "<=", ">", ">=", "=")


class Fault(NamedTuple):
    """A change of a source.

    Attributes:
        line: the number of the first changed line.
        old: that line, without spaces around it.
        new: the line in its place.
        source: the changed source.
        function: the function or class around the line, such as `Reader.read`; empty for none.
        repetition: the number of faults with the same `old` and `new` above it in the function.
    """

    line: int
    old: str
    new: str
    source: str
    function: str = ""
    repetition: int = 0


def find_faults(source: str) -> list[Fault]:
    """Return every fault of a source, in the order of its lines."""
    data = source.encode()
    tree = ast.parse(source)
    original = ast.dump(tree)
    faults: dict[str, Fault] = {}
    for start, end, new in _Finder(source).changes:
        changed = (data[:start] + new.encode() + data[end:]).decode()
        with contextlib.suppress(SyntaxError):
            if ast.dump(ast.parse(changed)) != original:
                lines = enumerate(zip(source.splitlines(), changed.splitlines(), strict=False), 1)
                line, old, new = next((n, a, b) for n, (a, b) in lines if a != b)
                faults[changed] = Fault(line, old.strip(), new.strip(), changed)
    return _add_places(sorted(faults.values()), _find_functions(tree))


def _find_functions(tree: ast.Module) -> dict[int, str]:
    """Return the qualified name of the innermost function or class of each line that has one."""
    names: dict[int, str] = {}

    def add(node: ast.AST, outer: str) -> None:
        name = outer
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}.{node.name}".lstrip(".")
            # An inner one is visited later, and replaces the names of its lines.
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                names[line] = name
        for child in ast.iter_child_nodes(node):
            add(child, name)

    add(tree, "")
    return names


def _add_places(faults: list[Fault], functions: Mapping[int, str]) -> list[Fault]:
    """Add the function of each fault, and its number among equal ones there."""
    seen = Counter[tuple[str, str, str]]()
    placed = []
    for fault in faults:
        function = functions.get(fault.line, "")
        key = (function, fault.old, fault.new)
        placed.append(fault._replace(function=function, repetition=seen[key]))
        seen[key] += 1
    return placed


def choose_faults(
    faults: list[Fault], number: int, seed: int, without: Collection[tuple[str, str]] = ()
) -> list[Fault]:
    """Choose faults at random: of different lines, as long as there are enough lines.

    Args:
        without: faults that are not chosen, as the old and the new line. The others stay chosen.
    """
    shuffled = random.Random(seed).sample(faults, len(faults))
    shuffled = [fault for fault in shuffled if (fault.old, fault.new) not in without]
    first = {fault.line: fault for fault in reversed(shuffled)}
    different = [fault for fault in shuffled if first[fault.line] is fault]
    others = [fault for fault in shuffled if first[fault.line] is not fault]
    return sorted((different + others)[:number])


class _Finder:
    """The changes of a source, as ranges of its bytes with their new text."""

    def __init__(self, source: str) -> None:
        self.changes: list[tuple[int, int, str]] = []
        self._data = source.encode()
        self._lines = [0]
        for line in self._data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._equal: set[tuple[int, str]] = set()
        self._returns = ""
        self._visit(ast.parse(source))

    def _visit(self, node: ast.AST) -> None:
        """Visit a node and its children, without annotations, decorators and type aliases."""
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        method = getattr(self, f"_change_{type(node).__name__.lower()}", None)
        if method is not None:
            method(node)
        if isinstance(node, ast.JoinedStr):  # Python 3.11 has no positions of its values.
            return
        outer = self._returns
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._returns = ast.unparse(node.returns) if node.returns else ""
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._visit(child)
        self._returns = outer

    def _start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode()

    def _replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        if (self._start(node), new) not in self._equal:
            self.changes.append((self._start(node), self._end(node), new))

    def _replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace an operator between two operands, which can have parentheses."""
        start = self._end(left)
        end = self._start(right)
        text = self._text(start, end)
        if (found := re.search(old, text)) is not None:
            self.changes.append((start, end, text[: found.start()] + new + text[found.end() :]))

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.Compare):
            return  # The change of its sign is the same.
        shown = test.operand if isinstance(test, ast.UnaryOp) else test
        text = self._text(self._start(shown), self._end(shown))
        self._replace(test, f"({text})" if shown is not test else f"(not ({text}))")

    def _change_compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
            old, changes = _COMPARISONS[type(sign)]
            for new in changes:
                self._replace_between(left, right, old, new)

    def _change_boolop(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            self._replace_between(left, right, rf"\b{old}\b", new)

    def _change_if(self, node: ast.If | ast.IfExp) -> None:
        self._negate(node.test)

    _change_ifexp = _change_if

    def _change_while(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)

    def _change_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)

    def _change_subscript(self, node: ast.Subscript) -> None:
        # The first and the last of one row are the same.
        if isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            self._equal.add((self._start(node.slice), "-1"))

    def _change_constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, repr(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))
            self._replace(node, repr(node.value - 1))
        elif isinstance(node.value, str):
            self._change_joinedstr(node)

    def _change_joinedstr(self, node: ast.Constant | ast.JoinedStr) -> None:
        """Change a sign or word of SQL outside the braces of a text."""
        text = self._text(self._start(node), self._end(node))
        is_sign = isinstance(node, ast.Constant) and node.value in _SIGNS
        if not is_sign and not _IS_SQL.search(text):
            return
        values = re.compile(r"\{[^{}]*\}")
        # The text keeps its length.
        shown = values.sub(lambda found: " " * len(found[0]), text)
        for found in _SQL_WORDS.finditer(shown):
            self._replace(node, text[: found.start()] + _SQL[found[0]] + text[found.end() :])

    def _change_binop(self, node: ast.BinOp) -> None:
        # An operand None is part of a type.
        if type(node.op) in _OPERATORS and "None" not in map(ast.unparse, (node.left, node.right)):
            old, new = _OPERATORS[type(node.op)]
            self._replace_between(node.left, node.right, re.escape(old), new)

    def _change_assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "pass")

    def _change_expr(self, node: ast.Expr) -> None:
        if not re.match(r"_?log(ger)?\.", ast.unparse(node)):
            self._replace(node, "pass")

    def _remove(self, node: ast.stmt) -> None:
        self._replace(node, "pass")

    _change_augassign = _change_break = _change_continue = _change_delete = _change_raise = _remove

    def _change_return(self, node: ast.Return) -> None:
        """Change a result only to one of the same type: mypy notices others."""
        if node.value is None:
            self._replace(node, "pass")
        elif self._returns == "bool":
            self._negate(node.value)
        elif re.search(r"\bNone\b", self._returns):
            self._replace(node, "return None")

    def _change_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            self._replace(node.func, _FUNCTIONS[node.func.id])
        given = sorted([*node.args, *node.keywords], key=self._start)
        for number, argument in enumerate(given):
            if isinstance(argument, ast.keyword) and argument.arg is not None:
                start = self._end(given[number - 1]) if number else self._start(argument)
                self.changes.append((start, self._end(argument), ""))
