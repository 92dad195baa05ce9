"""`agentctl sessions`."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.kit.tables import every_row

_numbers = itertools.count()


@pytest.fixture
def session(demo: Demo) -> str:
    """A session with one run of the agent echo."""
    return _new_session(demo)


def _new_session(demo: Demo) -> str:
    name = f"s-{next(_numbers)}"
    demo.run(name, f"hello from {name}")
    return name


def test_get_shows_the_record(on_demo: Agentctl, session: str) -> None:
    record = json.loads(on_demo("sessions", "get", session, "-o", "json").raw)
    assert record["session_id"] == session
    assert [message["role"] for message in record["chat_history"]] == ["user", "assistant"]
    assert on_demo("sessions", "get", session, "--type", "agent", "-o", "name").lines == [session]


@every_row(
    "options", [["--type", "team"], ["--user", "nobody"], ["--db", "nowhere"], ["--table", "other"]]
)
def test_filters_that_do_not_match_hide_a_session(
    on_demo: Agentctl, session: str, options: list[str]
) -> None:
    assert on_demo("sessions", "get", session, *options).code == 5


def test_list_continues_at_the_cursor(on_demo: Agentctl, demo: Demo) -> None:
    made = [_new_session(demo) for _ in range(3)]
    first = on_demo("sessions", "list", "--limit", "2", "-o", "name")
    assert first.lines == [made[2], made[1]]
    note = first.stderr.splitlines()[-1]
    assert note.startswith("showing 2 of ")
    cursor = note.rpartition("--cursor ")[2]
    second = on_demo("sessions", "list", "--limit", "1", "--cursor", cursor, "-o", "name")
    assert second.lines == [made[0]]


def test_list_filters(on_demo: Agentctl, session: str) -> None:
    named = ("sessions", "list", "-o", "name", "--name", f"HELLO FROM {session}")
    assert session in on_demo(*named).lines
    assert session not in on_demo(*named, "--type", "team").lines
    assert session not in on_demo(*named, "--component", "slow").lines
    assert session not in on_demo(*named, "--user", "nobody").lines
    assert on_demo(*named, "--db", "nowhere").code == 5


def test_an_empty_list_is_a_success(on_demo: Agentctl) -> None:
    ended = on_demo("sessions", "list", "--name", "no session is called so")
    assert ended.code == 0
    assert ended.lines == [ended.stdout.removesuffix("\n")]
    assert on_demo("sessions", "list", "--name", "no such", "-o", "name").stdout == ""


def test_runs_of_a_session(on_demo: Agentctl, session: str) -> None:
    heading, row = (line.split("\t") for line in on_demo("sessions", "runs", session).lines)
    record = dict(zip(heading, row, strict=True))
    assert (record["session_id"], record["status"]) == (session, "COMPLETED")


def test_rename_reports_the_target(through: Agentctl, session: str, demo: Demo) -> None:
    ended = through("sessions", "rename", session, "Trip\tto Rome", "-o", "json")
    assert json.loads(ended.raw)["session_name"] == "Trip\tto Rome"
    said = ended.stderr.splitlines()[-1]
    where = (f"on {demo.url}", f"locally ({demo.config})")
    assert said in [f"renamed session {session} {place}" for place in where]


def test_control_characters_of_a_name_are_escaped(
    terminal: Terminal, agentctl: Agentctl, demo: Demo, session: str
) -> None:
    here = ("--config", str(demo.config))
    assert agentctl("sessions", "rename", session, "\x1b[2Jgone\n", *here).code == 0
    seen = terminal("sessions", "list", "--limit", "5", *here)
    assert "\x1b" not in seen.screen
    assert "\\x1b[2Jgone\\n" in seen.screen


def test_delete_needs_yes_off_a_terminal(on_demo: Agentctl, session: str) -> None:
    refused = on_demo("sessions", "delete", session)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    tried = on_demo("sessions", "delete", session, "--dry-run")
    assert (tried.code, tried.stdout) == (0, f"{session}\n")
    deleted = on_demo("sessions", "delete", session, "--yes")
    assert (deleted.code, deleted.stdout) == (0, "")
    assert f"deleted session {session}" in deleted.stderr
    assert on_demo("sessions", "get", session).code == 5


def test_delete_asks_at_a_terminal(
    terminal: Terminal, agentctl: Agentctl, demo: Demo, session: str
) -> None:
    here = ("--config", str(demo.config))
    assert terminal("sessions", "delete", session, *here, types="n\n").code == 2
    assert agentctl("sessions", "get", session, *here).code == 0
    assert terminal("sessions", "delete", session, *here, types="y\n").code == 0
    assert agentctl("sessions", "get", session, *here).code == 5


def test_several_sessions_are_deleted_together_or_not_at_all(
    on_demo: Agentctl, demo: Demo, session: str
) -> None:
    other = _new_session(demo)
    assert on_demo("sessions", "delete", session, other, "nowhere", "--yes").code == 5
    assert on_demo("sessions", "get", session).code == 0
    assert on_demo("sessions", "delete", session, other, "--yes").code == 0
    assert on_demo("sessions", "get", other).code == 5


def test_a_session_with_a_live_run_is_deleted_only_with_cancel(
    agentctl: Agentctl, demo: Demo
) -> None:
    there = {"AGENTCTL_TOKEN": demo.token}
    remote = ("--url", demo.url)
    name = f"busy-{next(_numbers)}"
    demo.run(name, "hello", agent="slow", leave=True)
    refused = agentctl("sessions", "delete", name, "--yes", *remote, env=there)
    assert refused.code == 6
    part = agentctl(
        *("sessions", "delete", name, "nowhere", "--yes", "--cancel", *remote), env=there
    )
    assert part.code == 1
    assert f"deleted session {name}" in part.stderr
    assert "error: session not found: nowhere" in part.stderr
    assert part.stderr.splitlines()[-1] == "error: 1 of 2 failed"
