"""`agentctl doctor --runs`: inconsistent runs, and their repair."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl, Result, Terminal
from tests.cli.demo import Demo
from tests.cli.local_project import in_database, running_command, write_config
from tests.kit.process import base_environment

CALLS = json.dumps(
    [
        {"role": "user", "content": "go", "created_at": 1},
        {
            "role": "assistant",
            "content": "",
            "created_at": 2,
            "tool_calls": [
                {"id": "c1", "name": "add", "arguments": {}},
                {"id": "c2", "name": "wait", "arguments": {}},
            ],
        },
        {"role": "tool", "content": "3", "created_at": 3, "tool_call_id": "c1", "tool_name": "add"},
    ]
)
TOOLS = json.dumps(
    [{"tool_call_id": "c2", "tool_name": "wait", "tool_call_error": None, "result": None}]
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


@pytest.fixture
def run(agentctl: Agentctl, config: Path) -> str:
    """A run of session s1 that is as it should be; the database holds it alone."""
    start = ("runs", "start", "--agent", "echo", "-m", "hi", "--session", "s1")
    return agentctl(*start, "--no-stream", "-o", "name", "--config", str(config)).lines[0]


def doctor(agentctl: Agentctl, config: Path, *args: str) -> Result:
    return agentctl("doctor", "--runs", *args, "--config", str(config))


def found(agentctl: Agentctl, config: Path, *args: str) -> list[dict[str, str]]:
    ended = doctor(agentctl, config, *args, "-o", "json")
    assert ended.code in (0, 1), ended.stderr
    records: list[dict[str, str]] = json.loads(ended.raw)
    return records


@pytest.fixture(scope="module")
def lost_project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run whose process was killed while it worked, and the id of the run."""
    folder = tmp_path_factory.mktemp("lost")
    place = ("--config", str(write_config(folder)))
    start = ("runs", "start", "--agent", "slow", "-m", "word", "--session", "lost", *place)
    environment = base_environment() | {"HOME": str(folder)}
    log = folder / "killed.log"
    with running_command(*start, environment=environment, log=log) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"word"
        process.kill()
        process.wait()
    return folder, log.read_text().partition("started run ")[2].split()[0]


@pytest.fixture
def lost_run(lost_project: tuple[Path, str], config: Path) -> str:
    """A run whose process was killed; the database holds it alone."""
    folder, run_id = lost_project
    shutil.copytree(folder, config.parent, dirs_exist_ok=True)
    return run_id


def test_no_problems_is_exit_code_0(agentctl: Agentctl, config: Path, run: str) -> None:
    ended = doctor(agentctl, config)
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert ended.stderr == f"no problems in 1 run locally ({config})\n"
    assert doctor(agentctl, config, "-o", "json").stdout == "[]\n"
    assert doctor(agentctl, config, "--fix", "--yes").code == 0


def test_check_of_runs_rejects_a_server(agentctl: Agentctl, demo: Demo, config: Path) -> None:
    ended = agentctl("doctor", "--runs", "--url", demo.url)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.endswith("run it on the machine of the database, with --config FILE\n")
    assert doctor(agentctl, config, "--as-user", "ada").code == 2


def test_a_missing_database_is_not_created(agentctl: Agentctl, config: Path) -> None:
    assert doctor(agentctl, config).code == 7
    assert not (config.parent / "agentctl.db").exists()


def test_a_run_of_a_killed_worker_is_ended(agentctl: Agentctl, config: Path, lost_run: str) -> None:
    listed = doctor(agentctl, config)
    assert listed.code == 1
    remedy = f"agentctl doctor --runs --fix --config {config}"
    assert f"hint: repair them with: {remedy}" in listed.stderr
    problems = found(agentctl, config)
    assert [(each["kind"], each["run_id"]) for each in problems] == [
        ("lost", lost_run),
        ("dead_worker", None),
    ]
    assert problems[0]["remedy"] == "end it as ERROR, WORKER_LOST"
    get = ("runs", "get", lost_run, "-o", "json", "--config", str(config))
    status = json.loads(agentctl(*get).raw)
    assert status["status"] == "RUNNING", "looking changes nothing"

    fixed = doctor(agentctl, config, "--fix", "--yes", "-o", "json")
    assert fixed.code == 0
    assert [(each["outcome"], each["detail"]) for each in json.loads(fixed.raw)] == [
        ("repaired", "ended as ERROR, WORKER_LOST"),
        ("repaired", "removed its row"),
    ]
    assert fixed.stderr.endswith(f"2 repaired, locally ({config})\n")
    assert doctor(agentctl, config).code == 0
    ended = json.loads(agentctl(*get).raw)
    assert ended["error"]["code"] == "WORKER_LOST"
    assert in_database(config, "SELECT count(*) FROM workers") == [(0,)]


def test_a_requested_cancel_becomes_the_final_status(
    agentctl: Agentctl, config: Path, lost_run: str
) -> None:
    asked = "UPDATE runs SET cancel_requested_at = 1, cancel_requested_by = 'ann'"
    in_database(config, asked)
    assert found(agentctl, config)[0]["remedy"] == "end it as CANCELLED"
    assert found(agentctl, config, "--fix", "--yes")[0]["detail"] == "ended as CANCELLED"
    record = agentctl("runs", "get", lost_run, "-o", "json", "--config", str(config))
    assert json.loads(record.raw)["cancel_reason"] == "The worker was lost"


def test_a_run_without_a_session_is_deleted(agentctl: Agentctl, config: Path, run: str) -> None:
    in_database(config, "INSERT INTO run_events VALUES (?, 0, 0, 'RunStarted {}')", (run,))
    in_database(config, "DELETE FROM sessions")
    (problem,) = found(agentctl, config)
    assert (problem["kind"], problem["run_id"], problem["session_id"]) == ("no_session", run, "s1")
    (fixed,) = found(agentctl, config, "--fix", "--yes")
    assert fixed["detail"] == "deleted the run and 1 batch of its events"
    assert in_database(config, "SELECT count(*) FROM runs") == [(0,)]
    assert in_database(config, "SELECT count(*) FROM run_events") == [(0,)]


def test_a_tool_call_without_a_result_gets_one(agentctl: Agentctl, config: Path, run: str) -> None:
    in_database(config, "UPDATE runs SET messages = ?, tools = ?", (CALLS, TOOLS))
    (problem,) = found(agentctl, config)
    assert problem["problem"] == "1 tool call without a result: wait"
    (fixed,) = found(agentctl, config, "--fix", "--yes")
    assert (fixed["outcome"], fixed["detail"]) == ("repaired", 'added 1 result "cancelled"')
    record = json.loads(agentctl("runs", "get", run, "-o", "json", "--config", str(config)).raw)
    assert record["messages"][:3] == json.loads(CALLS)
    added = record["messages"][3]
    assert (added["role"], added["tool_call_id"], added["content"]) == ("tool", "c2", "cancelled")
    assert record["tools"][0]["result"] == "cancelled"
    assert doctor(agentctl, config).code == 0
    again = ("runs", "start", "--agent", "echo", "-m", "more", "--session", "s1")
    assert agentctl(*again, "--config", str(config)).stdout == "more\n"


def test_an_unrepairable_problem_is_reported(agentctl: Agentctl, config: Path, run: str) -> None:
    in_database(config, """UPDATE runs SET messages = '{"tool_calls": 1}'""")
    ended = doctor(agentctl, config, "--fix", "--yes")
    assert (ended.code, ended.lines[1].split("\t")[4]) == (1, "unreadable")
    assert "error: 1 problem found, none can be repaired here" in ended.stderr
    assert in_database(config, "SELECT messages FROM runs") == [('{"tool_calls": 1}',)]


def test_a_silent_worker_of_another_host_is_left_alone(
    agentctl: Agentctl, config: Path, run: str
) -> None:
    beat = int((time.time() - 100) * 1_000_000)
    row = ("far", "elsewhere", "boot/1", 1, 1, beat, beat)
    in_database(config, "INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, 0)", row)
    in_database(config, "UPDATE runs SET owner = 'far', status = 'RUNNING', finished_at = NULL")
    (problem,) = found(agentctl, config)
    assert (problem["kind"], problem["run_id"], problem["remedy"]) == ("silent", run, None)
    assert problem["problem"].startswith(
        "it is RUNNING, but its worker has had no heartbeat for 10"
    )
    assert doctor(agentctl, config, "--fix", "--yes").code == 1
    assert in_database(config, "SELECT status FROM runs") == [("RUNNING",)]
    assert in_database(config, "SELECT count(*) FROM workers") == [(1,)]


def test_several_problems_are_repaired_and_one_is_left(
    agentctl: Agentctl, config: Path, run: str
) -> None:
    other = ("runs", "start", "--agent", "echo", "-m", "hi", "--session", "s2")
    agentctl(*other, "--config", str(config))
    in_database(config, "UPDATE runs SET messages = ?, tools = NULL WHERE run_id = ?", (CALLS, run))
    broken = """UPDATE runs SET messages = '[{"tool_calls": [1]}]' WHERE run_id <> ?"""
    in_database(config, broken, (run,))
    ended = doctor(agentctl, config, "--fix", "--yes")
    assert ended.code == 1
    assert sorted(line.split("\t")[7] for line in ended.lines[1:]) == ["left", "repaired"]
    assert ended.stderr.splitlines()[-2:] == [
        f"1 repaired, 1 left, locally ({config})",
        "error: 1 problem left",
    ]


def test_repair_asks_for_a_confirmation(
    agentctl: Agentctl, terminal: Terminal, config: Path, run: str
) -> None:
    in_database(config, "UPDATE runs SET messages = ?", (CALLS,))
    refused = doctor(agentctl, config, "--fix")
    assert (refused.code, refused.stdout) == (2, "")
    assert "--yes" in refused.stderr
    command = ("doctor", "--runs", "--fix", "--config", str(config))
    no = terminal(*command, types="n\n", env={"COLUMNS": "200"})
    assert no.code == 2
    assert f"Repair 1 of 1 problem locally ({config})? [y/N] " in no.screen
    assert "FIX" in no.screen
    assert in_database(config, "SELECT messages FROM runs") == [(CALLS,)]
    yes = terminal(*command, types="y\n", env={"COLUMNS": "200"})
    assert yes.code == 0
    assert 'added 1 result "cancelled"' in yes.screen


def test_one_database_can_be_selected(agentctl: Agentctl, config: Path, run: str) -> None:
    second = '[[databases]]\nid = "second"\nurl = "sqlite:///second.db"\n'
    config.write_text(config.read_text() + second)
    in_database(config, "DELETE FROM sessions")
    assert doctor(agentctl, config).code == 7, "the second one is not there"
    assert doctor(agentctl, config, "main", "-o", "name").lines == [run]
    assert doctor(agentctl, config, "nowhere").code == 5
    shown = doctor(agentctl, config, "main").stderr
    assert f"agentctl doctor --runs main --fix --config {config}" in shown
