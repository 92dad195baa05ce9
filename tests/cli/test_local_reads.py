"""Commands that only read open a database, and no service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from agentctl.service.service import Service
from tests.cli.conftest import Agentctl
from tests.cli.local_project import write_config
from tests.kit.tables import every_row

BROKEN_AGENT = """
[[agents]]
id = "broken"
object = "broken_agent_of_reads:answer"
[[workflows]]
id = "relay"
steps = [{ name = "first", agent = "echo" }]
"""


@pytest.fixture
def project(agentctl: Agentctl, home: Path) -> dict[str, str]:
    """A session with a completed run, one with a failed run, and a halt; their ids by name."""
    with write_config(home).open("a") as config:
        config.write(BROKEN_AGENT)
    module = home / "broken_agent_of_reads.py"
    module.write_text("async def answer(message: str) -> str:\n    raise KeyError('shelf')\n")

    completed = agentctl("runs", "start", "--agent", "echo", "--message", "hi", "-o", "json")
    assert completed.code == 0
    agentctl("runs", "start", "--agent", "broken", "--message", "hi", "-o", "json")
    failed = json.loads(agentctl("runs", "list", "--status", "ERROR", "-o", "json").raw)["data"][0]
    halted = agentctl("halt", "--user", "ann", "--reason", "too many mails", "-o", "name")
    run = json.loads(completed.raw)
    return {
        "session": run["session_id"],
        "run": run["run_id"],
        "failed_session": failed["session_id"],
        "failed": failed["run_id"],
        "halt": halted.lines[0],
    }


def _refuse_service(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a read opened a service")


@every_row(
    "command, expected",
    [
        ("agents list", "broken"),
        ("agents get echo", "echo"),
        ("teams list", "slow"),
        ("teams get pair -o json", "delegate_task"),
        ("workflows list", "first"),
        ("workflows get relay -o json", "input_schema"),
        ("sessions list -o name", "{session}"),
        ("sessions get {session} -o table", "hi"),
        ("sessions get {session} -o json", "chat_history"),
        ("sessions get {failed_session} --members --full", "KeyError"),
        ("sessions runs {session}", "{run}"),
        ("runs list -o name", "{failed}"),
        ("runs failures", "KeyError"),
        ("runs get {failed} -o table", "KeyError"),
        ("runs get {run} --session {session} --timeline -o table", "hi"),
        ("runs get {run} --messages", "hi"),
        ("runs get {run} -o json", "messages"),
        ("halts list --state active -o name", "{halt}"),
        ("halts get {halt} -o json", "too many mails"),
    ],
)
def test_a_read_opens_no_service(
    agentctl: Agentctl,
    project: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    expected: str,
) -> None:
    words = [word.format_map(project) for word in command.split()]
    monkeypatch.setattr(Service, "open", _refuse_service)
    ended = agentctl(*words)
    assert (ended.code, ended.stderr) == (0, "")
    assert expected.format_map(project) in ended.stdout


@every_row(
    "command, expected",
    [
        ("agents get ecko", "did you mean echo?"),
        ("sessions get nobody", "agentctl sessions list"),
        ("runs get nobody", "agentctl runs list"),
        ("runs list --db other", "database not found"),
        ("halts get nobody", "agentctl halts list"),
    ],
)
def test_the_error_of_a_read_needs_no_service(
    agentctl: Agentctl,
    project: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    expected: str,
) -> None:
    monkeypatch.setattr(Service, "open", _refuse_service)
    ended = agentctl(*command.split())
    assert ended.code == 5
    assert expected in ended.stderr


def test_model_calls_are_read_through_the_service(
    agentctl: Agentctl, project: dict[str, str]
) -> None:
    calls = agentctl("runs", "get", project["run"], "--model-calls", "-o", "json")
    assert (calls.code, calls.stderr) == (0, "")
    assert len(json.loads(calls.raw)) == 1


def test_a_read_is_audited_if_reads_are(
    agentctl: Agentctl, project: dict[str, str], home: Path
) -> None:
    agentctl("sessions", "get", project["session"], "-o", "json")
    assert _list_audited(agentctl) == []

    with (home / "agentctl.toml").open("a") as config:
        config.write("[audit]\nreads = true\n")
    agentctl("sessions", "get", project["session"], "-o", "json")
    agentctl("sessions", "get", "nobody", "-o", "json")
    assert _list_audited(agentctl) == [
        ("failed", "session:nobody", 404),
        ("allowed", f"session:{project['session']}", None),
    ]


def _list_audited(agentctl: Agentctl) -> list[tuple[str, str, int | None]]:
    listed = agentctl("audit", "list", "--operation", "get_session_by_id", "-o", "json")
    entries = json.loads(listed.raw)["data"]
    return [(entry["outcome"], entry["resource"], entry["status"]) for entry in entries]
