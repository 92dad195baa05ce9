"""The tables of docs/agentos.md: current, complete, and each cell with its tests."""

from __future__ import annotations

import re
from pathlib import Path

from compat.cells import NONE
from compat.operations import ROWS
from compat.page import PAGE, render

HERE = Path(__file__).parent


def list_functions(file: str) -> set[str]:
    """Return the names of the functions of a module in this folder."""
    return set(re.findall(r"def (\w+)\(", (HERE / file).read_text(encoding="utf-8")))


def test_page_has_the_current_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == render(text), "run: python -m compat.page"


def test_every_cell_has_tests_that_exist() -> None:
    for row in ROWS:
        for cell in (row.client, row.page):
            if cell is NONE:
                continue
            assert cell.tests, row.name
            assert cell.text == "works" or cell.reason, row.name
            missing = set(cell.tests.split()) - list_functions(cell.file)
            assert missing == set(), row.name
        assert (row.client is not NONE) >= bool(row.methods), row.name


def test_every_operation_of_the_client_has_a_row() -> None:
    from agno.client import AgentOSClient

    public = {name for name in vars(AgentOSClient) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(AgentOSClient, name))}
    assert {name for row in ROWS for name in row.methods} == methods
    tried = {name for row in ROWS for name in row.client.tests.split()}
    parts = ("client_", "memory_", "refused_", "absent_", "remote_")
    written = {name for name in list_functions("agentos_client.py") if name.startswith(parts)}
    assert written - tried == set()
