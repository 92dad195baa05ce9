"""Code that packs several things into one line (docs/internals/style.md).

`python -m tests.architecture.plain_code PATH...` prints three kinds of places, each with what to
write instead; without a path those of the package, the documentation, the tests and the packaging:

- an assignment of several values to several names;
- a conditional expression inside a conditional expression;
- a comment that keeps the formatter away from anything but a table of data.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("agentctl", "docs", "tests", "packaging")

_FORMATTER_COMMENT = re.compile(r"#\s*fmt:\s*(?:skip|off)\b")
_TYPES = {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "set", "str"}


class Problem(NamedTuple):
    """A place to rewrite, and how."""

    line: int
    advice: str


def find_problems(source: str) -> list[Problem]:
    """Return the places of a Python file, in the order of their lines."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    return sorted(
        [
            *_find_packed_assignments(nodes),
            *_find_nested_conditions(nodes),
            *_find_formatter_comments(source, tree, nodes),
        ]
    )


def _find_packed_assignments(nodes: Sequence[ast.AST]) -> Iterator[Problem]:
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if _is_packed(target, node.value):
                yield Problem(node.lineno, "write one assignment a line")
                break


def _is_packed(target: ast.expr, value: ast.expr) -> bool:
    """Return True for `a, b = x, y`, unless its order is its purpose.

    `a, b = b, a` swaps, and `a, b = b, a + b` computes the second value from the first name before
    it changes: one assignment a line would be wrong.
    """
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List):
        return False
    if len(target.elts) < 2 or any(isinstance(name, ast.Starred) for name in target.elts):
        return False
    if len(target.elts) != len(value.elts):
        return False

    assigned = set[str]()
    for name, item in zip(target.elts, value.elts, strict=True):
        if any(ast.unparse(node) in assigned for node in ast.walk(item)):
            return False
        assigned.add(ast.unparse(name))
    return True


def _find_nested_conditions(nodes: Sequence[ast.AST]) -> Iterator[Problem]:
    lines = {
        inner.lineno
        for outer in nodes
        if isinstance(outer, ast.IfExp)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.IfExp) and inner is not outer
    }
    for line in lines:
        yield Problem(line, "write the inner condition as an `if`, or as a function with a name")


def _find_formatter_comments(
    source: str, tree: ast.Module, nodes: Sequence[ast.AST]
) -> Iterator[Problem]:
    if "fmt:" not in source:
        return
    table_ends = {
        node.end_lineno
        for node in nodes
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and _has_table(node)
    }
    table_ends |= {
        node.end_lineno
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_constant(node.value, at_top=True)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_comment = token.type == tokenize.COMMENT and _FORMATTER_COMMENT.match(token.string)
        if is_comment and token.start[0] not in table_ends:
            yield Problem(
                token.start[0],
                "let the formatter lay this out; only a table of constants may keep its own layout",
            )


def _has_table(statement: ast.stmt) -> bool:
    """Return True for a simple statement that ends with a collection begun on its first line.

    The lines in between are rows of the collection, and nothing else has a layout of its own.
    """
    return any(
        isinstance(node, ast.Dict | ast.List | ast.Set | ast.Tuple | ast.Subscript)
        and (node.lineno, node.end_lineno) == (statement.lineno, statement.end_lineno)
        and _is_constant(node)
        for node in ast.walk(statement)
    )


def _is_constant(node: ast.expr | None, *, at_top: bool = False) -> bool:
    """Return True for data that is known before the program runs.

    These are literals, names of constants, classes and types, and what consists of them.

    Args:
        at_top: True for an assignment at the top level of a module. What it calls and names there
            is as constant as a literal.
    """
    match node:
        case None | ast.Constant():
            return True
        case ast.Name(name):
            return at_top or name in _TYPES or name.lstrip("_")[:1].isupper()
        case ast.Call(_, arguments, keywords):
            parts = [*arguments, *(keyword.value for keyword in keywords)]
            return at_top and all(_is_constant(part, at_top=True) for part in parts)
        case (
            ast.Attribute()
            | ast.Dict()
            | ast.List()
            | ast.Set()
            | ast.Tuple()
            | ast.Subscript()
            | ast.Starred()
            | ast.UnaryOp()
            | ast.BinOp()
            | ast.JoinedStr()
            | ast.FormattedValue()
        ):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            return all(_is_constant(part, at_top=at_top) for part in parts)
    return False


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files of folders, and the files that are named."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        else:
            yield path


def main() -> int:
    """Print the places in the files named on the command line; return the exit status."""
    paths = [Path(name).resolve() for name in sys.argv[1:]]
    count = 0
    for file in list_files(paths or [REPOSITORY / name for name in FOLDERS]):
        for problem in find_problems(file.read_text(encoding="utf-8")):
            print(f"{file.relative_to(REPOSITORY)}:{problem.line}: {problem.advice}")
            count += 1
    print(f"{count} places to rewrite", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
