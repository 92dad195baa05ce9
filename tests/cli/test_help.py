"""Every command's help reads well: it is the first documentation that a user sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentctl.cli.root import app


def _commands(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands([*path, name], inner)


COMMANDS = [
    pytest.param(path, command, id=" ".join(["agentctl", *path]))
    for path, command in _commands([], typer.main.get_command(app))
]
every_command = pytest.mark.parametrize(("path", "command"), COMMANDS)


def _help(path: list[str], columns: int) -> str:
    ended = CliRunner().invoke(
        app, [*path, "--help"], prog_name="agentctl", env={"COLUMNS": str(columns)}
    )
    assert (ended.exit_code, ended.stderr) == (0, "")
    return ended.stdout


@every_command
def test_help_fits_a_terminal_and_has_no_text_of_typer(path: list[str], command: Any) -> None:
    head, _, example = _help(path, 80).rpartition(":\n")
    assert max(map(len, head.splitlines())) <= 80
    assert example.strip() == command.epilog.partition(": ")[2]
    for mark in ("<", "]...", "x>=", "<=x", "_list"):
        assert mark not in head


@every_command
def test_every_parameter_has_a_help_text(path: list[str], command: Any) -> None:
    for parameter in command.params:
        assert parameter.help, parameter.name
        if not getattr(parameter, "is_flag", False):
            assert parameter.metavar, parameter.name


@every_command
def test_the_example_is_an_existing_command(path: list[str], command: Any) -> None:
    words = command.epilog.partition(": ")[2].partition("agentctl ")[2].rstrip(")").split()
    assert words[: len(path)] == path


def test_the_usage_line_lists_the_parameters() -> None:
    first = {
        name: _help(name.split(), 80).splitlines()[0] for name in ("runs cancel", "context add")
    }
    assert first == {
        "runs cancel": "Usage: agentctl runs cancel [OPTIONS] [RUN_ID...]",
        "context add": "Usage: agentctl context add --url URL [OPTIONS] NAME",
    }


def test_help_shows_bounds_and_target_options() -> None:
    shown = " ".join(_help(["runs", "cancel"], 80).split())
    assert " --wait SECONDS Seconds to wait " in shown
    assert "[default: 10; from 0 to 86400]" in shown
    assert " Connection and identity: --url URL " in shown
