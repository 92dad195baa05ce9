"""Golden pages of sessions and runs: what the commands write at a terminal and through a pipe."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agentctl.cli.show.terminal import display_width
from tests.cli.local_project import write_config
from tests.kit.command import Result, run_command, shift_clock
from tests.kit.golden import check_golden
from tests.kit.process import base_environment

GOLDEN = Path(__file__).with_name("golden")
NOW = datetime.fromisoformat("2025-11-22T12:30:20Z")
"""A time after the last run of the session, the same in every test."""
TEAM, STOPPED, TOOLS, HOLDING, LATE = (
    f"01a1fe5c-f70{digit}-7c7e-8f39-2f1f0a6c1b5d" for digit in (1, 4, 5, 7, 8)
)

AT_A_TERMINAL = (
    "sessions list",
    "sessions get d1",
    "sessions get d1 --last 1 --members",
    "runs list",
    "runs list --status ERROR",
    f"runs get {TEAM} --timeline --members",
    f"runs get {TOOLS} --raw",
    f"runs get {STOPPED}",
    f"runs get {HOLDING}",
    f"runs get {LATE}",
)
THROUGH_A_PIPE = (
    "sessions list",
    "sessions get d1",
    "sessions get d1 -o text --full --members",
    "sessions get d1 -o markdown",
    "sessions export d1 --format markdown",
    "runs list",
    "runs list -o table",
    f"runs get {HOLDING}",
    f"runs get {TEAM} -o text --timeline",
    f"runs get {TOOLS[:13]} -o markdown",
)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

Run = Callable[..., Result]


def read_session() -> dict[str, Any]:
    """Read a session with tools, members, a step, errors and cancels."""
    return dict(json.loads((GOLDEN / "session.json").read_text()))


def import_session(folder: Path, page: dict[str, Any]) -> Run:
    """Import a session into a new database, and return a function that runs commands on it."""
    write_config(folder)
    (folder / "session.json").write_text(json.dumps([page]))

    def run(*words: str, columns: int = 80, screen: bool = False, **more: str) -> Result:
        variables = base_environment() | {
            "HOME": str(folder),
            "USER": "tester",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "LINES": "25",
            "COLUMNS": str(columns),
            **more,
        }
        with shift_clock(round(NOW.timestamp() - time.time())):
            return run_command(*words, environment=variables, folder=folder, screen=screen)

    assert run("sessions", "import", "session.json").code == 0
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return import_session(tmp_path_factory.mktemp("pages"), read_session())


def write_pages(run: Run, commands: tuple[str, ...], **options: Any) -> str:
    """Run commands and return them with what they write to stdout, then to stderr."""
    shown = []
    for command in commands:
        ended = run(*command.split(), **options)
        assert ended.code == 0, ended.stderr
        shown.append(f"$ agentctl {command}\n{ended.stdout}{ended.stderr}")
    return "\n".join(shown)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_pages_at_a_terminal_are_as_expected(run: Run, columns: int) -> None:
    pages = write_pages(run, AT_A_TERMINAL, columns=columns, screen=True)
    check_golden(GOLDEN / f"terminal-{columns}.txt", pages)
    assert CONTROLS.findall(pages) == []
    lines = [line for line in pages.splitlines() if not line.startswith(("$ ", "hidden: "))]
    assert max(map(display_width, lines)) <= columns


def test_pages_through_a_pipe_are_as_expected(run: Run) -> None:
    pages = write_pages(run, THROUGH_A_PIPE)
    check_golden(GOLDEN / "pipe.txt", pages)
    assert CONTROLS.findall(pages) == []


@pytest.mark.parametrize(
    ("words", "variables", "colored"),
    [
        ("runs list --color always", {"NO_COLOR": "1"}, True),
        ("--color always runs list", {"NO_COLOR": "1"}, True),
        ("--color always runs list --color never", {"NO_COLOR": ""}, False),
        ("runs list --color never", {"NO_COLOR": "", "FORCE_COLOR": "1"}, False),
        ("runs list", {"NO_COLOR": "", "CLICOLOR_FORCE": "1"}, True),
        ("runs list", {"NO_COLOR": "", "CLICOLOR_FORCE": "0"}, False),
        ("runs list", {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
    ],
)
def test_colors_are_used_as_requested(
    run: Run, words: str, variables: dict[str, str], colored: bool
) -> None:
    shown = run(*words.split(), "-o", "table", **variables)
    assert shown.code == 0
    assert ("\x1b[31m" in shown.stdout) is colored


def poison(value: Any, field: str = "") -> Any:
    """Put HTML, control sequences and marks of direction before every text of a record."""
    hostile = "\x1b]8;;http://evil\x07x\u202e\r\x9b2J<script>&#x202e;[a](javascript:x)\n\n# b"
    if isinstance(value, dict):
        return {name: poison(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [poison(each, field) for each in value]
    kept = (
        "session_id", "run_id", "parent_run_id", "status", "role", "id", "tool_call_id", "kind",
        "member_runs", "member_run_id", "late_result", "agent_id", "team_id", "workflow_id",
        "user_id",
    )  # fmt: skip
    if not isinstance(value, str) or field in kept or field.endswith("_at"):
        return value
    return hostile + value


@pytest.mark.parametrize("screen", [True, False], ids=["terminal", "pipe"])
def test_every_text_of_a_session_is_escaped(tmp_path: Path, screen: bool) -> None:
    run = import_session(tmp_path, poison(read_session()))
    pages = write_pages(run, AT_A_TERMINAL if screen else THROUGH_A_PIPE, screen=screen)
    assert CONTROLS.findall(pages) == []
    assert "<script>" in pages
