"""Short ids: every parameter with the id of a session, run or memory accepts its beginning."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from agentctl.cli.root import app
from tests.cli.local_project import write_config
from tests.cli.test_pages import read_session
from tests.kit.command import Result, run_command
from tests.kit.process import base_environment
from tests.kit.tables import every_row

SHARED = "feedc0de"
"""The beginning of the ids of both sessions, and of all their runs."""

Run = Callable[..., Result]
_NOUNS = {"SESSION_ID": "sessions", "RUN_ID": "runs", "MEMORY_ID": "memories"}


def _find_id_parameters(path: list[str], command: Any) -> Iterator[Any]:
    """Yield each parameter that is the id of a record, with its command and the kind of record."""
    for parameter in command.params:
        noun = _NOUNS.get(str(parameter.metavar))
        if noun is None and "--session" in parameter.opts:
            noun = "sessions"
        if noun is not None:
            name = f"{' '.join(path)} {parameter.name}"
            yield pytest.param(path, command, parameter, noun, id=name)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _find_id_parameters([*path, name], inner)


ID_PARAMETERS = list(_find_id_parameters([], typer.main.get_command(app)))


def _make_session(number: int) -> dict[str, Any]:
    """Return a session with one run; the ids of all begin with the same 8 characters."""
    page = copy.deepcopy(read_session())
    session_id = f"{SHARED}-000{number}-7000-8000-000000000000"
    run = {**page["runs"][3], "run_id": f"{SHARED}-100{number}-7000-8000-000000000000"}
    return {
        "session": {**page["session"], "session_id": session_id},
        "runs": [{**run, "session_id": session_id}],
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run commands on a database with two sessions."""
    folder = tmp_path_factory.mktemp("ids")
    write_config(folder)
    (folder / "sessions.json").write_text(json.dumps([_make_session(1), _make_session(2)]))

    def run(*words: str) -> Result:
        environment = base_environment() | {"HOME": str(folder), "AGENTCTL_NO_INPUT": "1"}
        return run_command(*words, environment=environment, folder=Path(folder))

    assert run("sessions", "import", "sessions.json").code == 0
    return run


@pytest.fixture(scope="module")
def memory(run: Run) -> str:
    """The id of a memory whose first 8 characters are those of another one, too."""
    known: dict[str, str] = {}
    while True:
        added = run("memories", "add", f"memory {len(known)}", "-o", "name").stdout.strip()
        if added[:8] in known:
            return added
        known[added[:8]] = added


@pytest.mark.parametrize(("path", "command", "parameter", "noun"), ID_PARAMETERS)
def test_every_id_can_be_short(
    run: Run, memory: str, path: list[str], command: Any, parameter: Any, noun: str
) -> None:
    words = list(path)
    for each in command.params:
        is_option = each.param_type_name == "option"
        value = memory[:8] if noun == "memories" else SHARED
        if each.name == parameter.name:
            words += [each.opts[0], value] if is_option else [value]
        elif each.required:
            words += [each.opts[0], "x"] if is_option else ["x"]
    ended = run(*words)
    assert ended.code == 2, ended.stderr
    assert f"error: the ids of 2 {noun} begin with {value}\n" in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if line.startswith(value)]) == 2


def test_short_ids_name_the_records(run: Run, memory: str) -> None:
    session = f"{SHARED}-0001"
    run_id = f"{SHARED}-1001"
    waited = run("runs", "wait", run_id, f"{run_id}-7000", "-o", "name")
    assert waited.lines == [f"{run_id}-7000-8000-000000000000"]
    shown = run("runs", "get", run_id, "--session", session, "-o", "name")
    assert (shown.code, shown.lines) == (0, waited.lines)
    assert run("sessions", "export", session).stdout.count("\n") == 1
    listed = run("runs", "list", "--session", session, "--fields", "run_id")
    assert listed.lines == ["run_id", *waited.lines]
    other = run("memories", "add", "to delete", "-o", "name").stdout.strip()
    assert run("memories", "get", other[:30], "-o", "name").stdout.strip() == other
    assert "deleted memory " + other in run("memories", "delete", other[:30], "--yes").stderr


@every_row("words", ["runs get", "runs wait", "runs cancel", "sessions get", "memories get"])
def test_unknown_short_id_is_not_found(run: Run, words: str) -> None:
    ended = run(*words.split(), "0badc0de")
    assert ended.code == 5
    assert "not found" in ended.stderr
    assert f"list them with: agentctl {words.split()[0]} list" in ended.stderr
