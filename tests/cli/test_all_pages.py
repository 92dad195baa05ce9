"""`--all`: lists of any length, streamed page by page."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from agentctl.cli.root import app
from agentctl.store import compared
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.cli.local_project import in_database, running_command
from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment, start_agentctl
from tests.kit.tables import every_row
from tests.remote.conftest import Serve, answer, serve

__all__ = ["serve"]

ROWS = 250
OWN = ("--user", "walker")
IDS = [f"walk-{number:03}" for number in reversed(range(ROWS))]

_NUMBERS = (
    "WITH RECURSIVE numbers (n) AS (SELECT ? UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
)


def add_sessions(demo: Demo, first: int, last: int) -> None:
    """Create sessions that are older than all others, the one with the last number first."""
    in_database(
        demo.config,
        "INSERT INTO sessions (session_id, session_type, component_id, component_name, user_id,"
        " session_name, total_tokens, run_count, history_bytes, created_at, updated_at, metrics,"
        f" metadata) {_NUMBERS} SELECT printf('walk-%03d', n), 'agent', 'echo', 'Echo', 'walker',"
        " 'Session ' || n || printf('%.*c', 200, 'x'), 0, 0, 0, 1000 + n, 9000 - n, '{}',"
        " json_object('tags', json_array(iif(n % 100 = 7, 'rare', 'usual'))) FROM numbers",
        (first, last),
    )


@pytest.fixture(scope="module")
def filled(demo: Demo) -> Iterator[Demo]:
    """The demo server with sessions of a user, and many runs in the first of them."""
    add_sessions(demo, 0, ROWS - 1)
    in_database(
        demo.config,
        "INSERT INTO runs (run_id, session_id, seq, component_type, component_id, user_id, status,"
        " background, attempt, created_at, started_at, finished_at, stopped_at, late_result,"
        f" history, input, tools, messages) {_NUMBERS} SELECT printf('walk-run-%03d', n),"
        " 'walk-000', n + 1, 'agent', 'echo', 'walker', 'COMPLETED', 0, 1, 1000 + n, 1, 2, 2, 0,"
        " '[]', 'hello', '[]', '[]' FROM numbers",
        (0, ROWS - 1),
    )
    yield demo
    for table in ("runs", "sessions"):
        in_database(demo.config, f"DELETE FROM {table} WHERE user_id = 'walker'")


def test_every_format_has_every_row_once(filled: Demo, on_demo: Agentctl) -> None:
    def list_rows(form: str) -> str:
        ended = on_demo("sessions", "list", "--all", *OWN, "-o", form)
        assert (ended.code, ended.stderr) == (0, "")
        return ended.stdout

    assert list_rows("name").split() == IDS
    whole = json.loads(list_rows("json"))
    assert [row["session_id"] for row in whole["data"]] == IDS
    assert whole["meta"] == {"total_count": ROWS, "next_cursor": None}
    rows = [json.loads(line) for line in list_rows("jsonl").splitlines()]
    assert rows == whole["data"]
    head, *lines = list_rows("tsv").splitlines()
    assert head.startswith("session_id\t")
    assert [line.partition("\t")[0] for line in lines] == IDS
    head, *lines = list_rows("table").splitlines()
    assert head.startswith("SESSION ID")
    assert [line.split()[0] for line in lines] == IDS


def test_chosen_fields_and_an_empty_list_have_the_same_form(
    filled: Demo, on_demo: Agentctl
) -> None:
    chosen = on_demo(
        "sessions", "list", "--all", *OWN, "--fields", "session_id", "-o", "json", "--tag", "rare"
    )
    assert json.loads(chosen.stdout)["data"] == [
        {"session_id": f"walk-{number}"} for number in (207, 107)
    ] + [{"session_id": "walk-007"}]
    empty = on_demo("sessions", "list", "--all", "--user", "no one", "-o", "json")
    assert json.loads(empty.stdout) == {"data": [], "meta": {"total_count": 0, "next_cursor": None}}
    assert on_demo("sessions", "list", "--all", "--user", "no one", "-o", "name").stdout == ""
    unknown = on_demo("sessions", "list", "--all", *OWN, "--fields", "nonsense")
    assert (unknown.code, unknown.stdout) == (2, "")


def test_lists_of_runs_are_whole(filled: Demo, on_demo: Agentctl) -> None:
    ids = [f"walk-run-{number:03}" for number in range(ROWS)]
    runs = on_demo("runs", "list", "--all", *OWN, "-o", "name")
    assert runs.stdout.split() == ids[::-1]
    of_session = on_demo(
        "sessions", "runs", "walk-000", "--all", "-o", "json", "--fields", "run_id"
    )
    assert [row["run_id"] for row in json.loads(of_session.stdout)] == ids
    rest = on_demo("sessions", "runs", "walk-000", "--all", "--after", ids[-3], "-o", "name")
    assert rest.stdout.split() == ids[-2:]


def find_paged_lists(group: Any, path: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each command whose options continue a list, with the names of all its options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from find_paged_lists(command, f"{path} {name}")
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        if "--cursor" in options or {"--after", "--limit"} <= options:
            yield f"{path} {name}", options


def test_every_list_with_pages_has_all() -> None:
    lists = dict(find_paged_lists(typer.main.get_command(app), "agentctl"))
    assert {"agentctl sessions runs", "agentctl approvals list"} <= lists.keys()
    # It reads everything, and its cursor continues after Ctrl-C.
    whole = {"agentctl doctor"}
    assert {name for name, options in lists.items() if "--all" not in options} == whole


@every_row(
    "words",
    [
        "approvals list",
        "audit list",
        "audit heads",
        "memories list",
        "accounts list",
        "webhooks deliveries",
    ],
)
def test_other_lists_have_the_same_rows_in_pages(on_demo: Agentctl, words: str) -> None:
    whole = on_demo(*words.split(), "--all", "-o", "jsonl")
    assert whole.code == 0, whole.stderr
    part = on_demo(*words.split(), "--limit", "100", "-o", "jsonl")
    # Later entries of the audit log precede those of the first list.
    first = part.stdout.splitlines()
    assert set(whole.stdout.splitlines()) <= {*first, *whole.stdout.splitlines()[99:]}


def test_rows_that_are_added_meanwhile_change_nothing(filled: Demo, tmp_path: Path) -> None:
    """The first bytes are read, then the command waits until the pipe has room."""
    words = ("sessions", "list", "--all", *OWN, "-o", "json", "--url", filled.url)
    environment = base_environment() | {"AGENTCTL_TOKEN": filled.token}
    with running_command(*words, environment=environment, log=tmp_path / "log") as command:
        start = command.stdout.read(1)
        add_sessions(filled, ROWS, ROWS + 120)
        removed = "session_id IN ('walk-003', 'walk-240')"
        in_database(filled.config, f"DELETE FROM sessions WHERE {removed}")
        rows = json.loads(start + command.stdout.read())["data"]
        assert command.wait(PATIENCE) == 0
    ids = [row["session_id"] for row in rows]
    assert ids == [each for each in IDS if each in ids]
    assert set(IDS) - set(ids) <= {"walk-003", "walk-240"}
    in_database(filled.config, f"DELETE FROM sessions WHERE session_id >= 'walk-{ROWS}'")
    add_sessions(filled, 3, 3)
    add_sessions(filled, 240, 240)


def test_closed_pipe_ends_the_list_without_an_error(filled: Demo, tmp_path: Path) -> None:
    words = ("sessions", "list", "--all", *OWN, "-o", "json", "--config", str(filled.config))
    log = tmp_path / "log"
    with running_command(*words, environment=base_environment(), log=log) as command:
        assert command.stdout.read(1) == b"{"
        command.stdout.close()
        assert command.wait(PATIENCE) == 0
    assert log.read_text() == ""


def test_interrupted_list_names_the_cursor_that_continues(filled: Demo) -> None:
    words = ("sessions", "list", "--all", *OWN, "-o", "json", "--config", str(filled.config))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_agentctl(*words, env=base_environment(), **pipes) as process:
        assert process.stdout.read(1) == b"{"
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert b"continue with: --all --cursor " in process.stderr.read()
    assert process.returncode == 130


def test_failure_names_the_cursor_that_continues(agentctl: Agentctl, serve: Serve) -> None:
    run = b'{"run_id": "r", "session_id": "s", "status": "RUNNING"}'
    server = serve(answer(body=b'{"data": [' + run + b'], "meta": {"next_cursor": "there"}}'))
    ended = agentctl("runs", "list", "--all", "-o", "name", "--url", server.url)
    assert (ended.code, ended.stdout) == (7, "r\nr\n"), ended.stderr
    assert "interrupted after 2 rows; continue with: --all --cursor there" in ended.stderr
    assert "limit=100" in server.seen[-1].target
    assert "cursor=there" in server.seen[-1].target


@every_row("flags", [("--limit", "20"), ("--page", "1"), ("--watch",), ("--sort-by", "updated_at")])
def test_options_of_one_page_exclude_all(agentctl: Agentctl, flags: tuple[str, ...]) -> None:
    ended = agentctl("sessions", "list", "--all", *flags, "-o", "jsonl")
    assert ended.code == 2
    assert f"--all and {flags[0]}" in ended.stderr


def test_list_goes_on_until_the_page_is_full(
    filled: Demo, on_demo: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page has compared 20 rows."""
    monkeypatch.setattr(compared, "MAXIMUM_READ", 20)
    rare = ("sessions", "list", *OWN, "--tag", "rare", "-o", "json")
    page: dict[str, Any] = json.loads(on_demo(*rare, "--limit", "2").stdout)
    assert [row["session_id"] for row in page["data"]] == ["walk-007", "walk-107"]
    assert page["meta"]["total_count"] >= 2
    rest = json.loads(on_demo(*rare, "--cursor", page["meta"]["next_cursor"]).stdout)
    assert [row["session_id"] for row in rest["data"]] == ["walk-207"]
    assert rest["meta"]["next_cursor"] is None
    assert "searched_until" not in page["meta"]  # the command has searched on
    whole = json.loads(on_demo(*rare).stdout)
    assert [row["session_id"] for row in whole["data"]] == ["walk-007", "walk-107", "walk-207"]
    assert (whole["meta"]["total_count"], whole["meta"]["total_is_capped"]) == (3, False)


def test_note_of_a_list_at_a_terminal_has_no_cursor(terminal: Terminal, demo: Demo) -> None:
    for number in range(2):
        demo.run(f"noted-{number}", "x")
    environment = {"AGENTCTL_TOKEN": demo.token}
    seen = terminal("sessions", "list", "--limit", "1", "--url", demo.url, env=environment)
    assert "; --all lists all, -o json has the cursor" in seen.screen
    assert "--cursor" not in seen.screen
