"""Every command's help reads well: it is the first documentation that a user sees."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from agentctl.cli.help import HelpGroup
from agentctl.cli.root import app
from tests.kit.command import run_command
from tests.kit.process import base_environment
from tests.kit.tables import every_row


def _commands(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands([*path, name], inner)


COMMANDS = list(_commands([], typer.main.get_command(app)))
every_command = every_row("path, command", COMMANDS)


HELP = Path(__file__).parents[2].joinpath("docs/reference/help.txt").read_text()


@functools.cache
def _help(*path: str) -> str:
    """Return the help of a command at 80 columns."""
    environment = base_environment() | {"COLUMNS": "80", "NO_COLOR": "1"}
    ended = run_command(*path, "--help", environment=environment, folder=Path.cwd())
    assert (ended.code, ended.stderr) == (0, "")
    return ended.stdout


EXAMPLE_IDS = {"teams": "duo", "workflows": "relay"}
"""The component in the examples of the groups whose help is that of `agents` with another noun."""


def _with_noun(text: str, group: str) -> list[str]:
    """Return the words of the help of `agentctl agents` as the help of another group has them."""
    text = re.sub(r"\bagents\b", group, text)
    text = re.sub(r"\bagent\b", group.removesuffix("s"), text)
    return text.replace(" echo", f" {EXAMPLE_IDS[group]}").split()


@every_command
def test_help_is_that_of_the_reference_and_fits_a_terminal(path: list[str], command: Any) -> None:
    if path[1:] and path[0] in EXAMPLE_IDS:
        assert _help(*path).split() == _with_noun(_help("agents", *path[1:]), path[0])
    else:
        assert f"$ {' '.join(['agentctl', *path])} --help\n{_help(*path)}" in HELP
    head, _, example = _help(*path).rpartition(":\n")
    assert max(map(len, head.splitlines())) <= 80
    assert example.strip() == command.epilog.partition(": ")[2]
    assert "_list" not in head


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
    first = {name: _help(*name.split()).splitlines()[0] for name in ("runs cancel", "context add")}
    assert first == {
        "runs cancel": "Usage: agentctl runs cancel [OPTIONS] [RUN_ID]...",
        "context add": "Usage: agentctl context add [OPTIONS] {NAME}",
    }


def test_help_shows_bounds_and_target_options() -> None:
    shown = " ".join(_help("runs", "cancel").split())
    assert " --wait SECONDS Seconds to wait " in shown
    assert "[default: 10.0; 0<=x<=86400]" in shown
    assert " Connection and identity: --url URL " in shown


def test_root_help_has_the_first_sentence_of_each_command() -> None:
    root: Any = typer.main.get_command(app)
    assert root.summarize_commands() == HelpGroup.summarize_commands(root)


def test_root_help_has_every_command_under_a_heading() -> None:
    root: Any = typer.main.get_command(app)
    sections = root.list_sections()
    assert [*sections] == ["Start", "Work", "Money and people", "Operate", "Set up"]
    assert [row for rows in sections.values() for row in rows] == root.summarize_commands()
    names_of_work = {name for name, _ in sections["Work"]}
    assert names_of_work & {"runs", "usage"} == {"runs"}
