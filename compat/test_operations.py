"""The tables of docs/agentos.md: current, complete, and each cell with its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from agentctl.cli.root import app
from compat.cells import NONE
from compat.operations import LOCAL_COMMANDS, ROWS
from compat.page import PAGE, render

HERE = Path(__file__).parent


def list_functions(file: str) -> set[str]:
    """Return the names of the functions of a module in this folder."""
    return set(re.findall(r"def (\w+)\(", (HERE / file).read_text(encoding="utf-8")))


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Yield each command without subcommands, with its options."""
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), {option for each in command.params for option in each.opts}


def test_page_has_the_current_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == render(text), "run: python -m compat.page"


def test_every_cell_has_tests_that_exist() -> None:
    for row in ROWS:
        for cell in (row.command, row.client, row.page, row.database):
            if cell is NONE:
                continue
            assert cell.tests, row.name
            assert cell.text == "works" or cell.reason, row.name
            missing = set(cell.tests.split()) - list_functions(cell.file)
            assert missing == set(), row.name
        assert (row.command is not NONE) >= bool(row.commands), row.name
        assert (row.client is not NONE) >= bool(row.methods), row.name


def test_every_command_with_a_server_has_a_row() -> None:
    options = dict(walk(typer.main.get_command(app)))
    remote = {name for name, given in options.items() if "--url" in given} - LOCAL_COMMANDS
    assert {name for row in ROWS for name in row.commands} == remote
    readers = {name for name, given in options.items() if "--database" in given}
    assert {name for row in ROWS if row.database is not NONE for name in row.commands} == readers


def test_every_operation_of_the_client_has_a_row() -> None:
    from agno.client import AgentOSClient

    public = {name for name in vars(AgentOSClient) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(AgentOSClient, name))}
    assert {name for row in ROWS for name in row.methods} == methods
    tried = {name for row in ROWS for name in row.client.tests.split()}
    parts = ("client_", "memory_", "refused_", "absent_", "remote_")
    written = {name for name in list_functions("agentos_client.py") if name.startswith(parts)}
    assert written - tried == set()
