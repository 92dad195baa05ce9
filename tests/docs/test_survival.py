"""The page about survival has every kind of run for each fault, with tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.kit.documents import ROOT, page
from tests.kit.tables import every_row

KINDS = {
    "plain", "streamed", "background", "paused", "queued", "durable", "members", "workflow",
}  # fmt: skip

FAULTS = {
    "A process is killed", "A worker is stuck", "The machine is lost",
    "The database is restarted or unavailable", "The database is lost", "A deploy",
    "A model endpoint is down or slow", "An MCP program dies", "The client disconnects",
    "The clock jumps",
}  # fmt: skip

NONE = "not guaranteed"

_PROOF = re.compile(r'\[[^\]]+\]\(\.\./(?P<file>[^ ]+) "(?P<names>[^"]+)"\)')


def read_sections() -> dict[str, list[list[str]]]:
    """Return the rows of each fault: kinds, guarantee, tests."""
    sections: dict[str, list[list[str]]] = {}
    for part in page("docs/survival.md").text.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        lines = [line.strip("|").split(" | ") for line in text.splitlines() if line[:1] == "|"]
        sections[title] = [[cell.strip() for cell in cells] for cells in lines[2:]]
    return sections


@cache
def list_tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def list_rows() -> Iterator[tuple[str, str, str, str]]:
    for title, rows in read_sections().items():
        for kinds, guarantee, tests in rows:
            yield title, kinds, guarantee, tests


def test_every_fault_has_every_kind_of_run_once() -> None:
    sections = read_sections()
    assert sections.keys() == FAULTS
    for title, rows in sections.items():
        named = [kind for kinds, *_ in rows for kind in kinds.split(", ")]
        assert sorted(named) == sorted(KINDS), title


@every_row("row", list_rows())
def test_guarantee_names_tests_that_exist(row: tuple[str, str, str, str]) -> None:
    _, _, guarantee, tests = row
    if guarantee == NONE:
        assert tests == "-"
        return
    proofs = list(_PROOF.finditer(tests))
    assert proofs
    assert _PROOF.sub("", tests).strip() == ""
    for proof in proofs:
        missing = set(proof["names"].split(", ")) - list_tests(ROOT / proof["file"])
        assert not missing, f"{proof['file']} has no {missing}"
