"""Each reason of a skipped case names its remedy: `REASON: REMEDY`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.poolers.pgbouncer import MISSING

TESTS = Path(__file__).parents[1]
NAMES = {"MISSING": MISSING}


def find_reasons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find the reasons of all skips; in f-strings, each inserted value is the letter x."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func) not in ("pytest.skip", "pytest.mark.skip", "pytest.mark.skipif"):
            continue
        reason = next((each.value for each in node.keywords if each.arg == "reason"), None)
        match reason or node.args[0]:
            case ast.Constant(str(text)):
                yield node.lineno, text
            case ast.JoinedStr(values):
                parts = [each.value if isinstance(each, ast.Constant) else "x" for each in values]
                yield node.lineno, "".join(map(str, parts))
            case ast.Name(name):
                yield node.lineno, NAMES.get(name, ": a variable of the test")


def test_each_reason_names_a_remedy() -> None:
    found = {
        f"{path.relative_to(TESTS)}:{line}": reason
        for path in TESTS.rglob("*.py")
        for line, reason in find_reasons(ast.parse(path.read_text()))
    }
    assert len(found) > 20
    assert {place: each for place, each in found.items() if not each.partition(": ")[2]} == {}
