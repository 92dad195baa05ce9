"""`agentctl sessions import`: exports come back as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.conftest import Agentctl
from tests.cli.local_project import in_database
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.process import base_environment
from tests.kit.threaded_server import serve_in_thread

CONFIG = """
[[databases]]
id = "main"
url = "sqlite:///agentctl.db"
[[models]]
id = "echo"
provider = "demo"
model = "echo"
[[models]]
id = "leader"
provider = "demo"
model = "leader"
[[agents]]
id = "echo"
name = "Echo"
model = "echo"
instructions = "Repeat."
[[agents]]
id = "broken"
object = "broken_agent:fail"
[[teams]]
id = "pair"
model = "leader"
members = ["echo"]
[[workflows]]
id = "relay"
name = "Relay"
steps = [{ name = "repeat", agent = "echo" }, { name = "discuss", team = "pair" }]
"""

AGENT = "def fail(message: str) -> str:\n    raise ValueError(message)\n"

Record = dict[str, Any]


def write_project(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "broken_agent.py").write_text(AGENT)
    config = folder / "agentctl.toml"
    config.write_text(CONFIG)
    return config


def export(run: Callable[..., Result], config: Path, form: str = "jsonl") -> bytes:
    ended = run("sessions", "export", "--all", "--format", form, "--config", str(config))
    assert ended.code == 0, ended.stderr
    return ended.raw


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The export of sessions of every kind, with runs of every final status."""
    folder = tmp_path_factory.mktemp("source")
    config = write_project(folder)
    environment = base_environment() | {"HOME": str(folder)}

    def run(*words: str) -> Result:
        return run_command(*words, environment=environment, folder=folder)

    for words in (
        ("--agent", "echo", "--session", "s1", "-m", "one", "--metadata", '{"b": 1, "a": {}}'),
        ("--agent", "echo", "--session", "s1", "-m", "two", "--session-state", '{"z": [1.5]}'),
        ("--team", "pair", "--session", "s2", "-m", "work", "--as-user", "ada"),
        ("--workflow", "relay", "--session", "s3", "-m", "step"),
        ("--agent", "broken", "--session", "s4", "-m", "fail"),
        ("--agent", "echo", "--session", "s4", "-m", "stop"),
    ):
        run("runs", "start", "--no-stream", *words, "--config", str(config))
    in_database(
        config,
        "UPDATE runs SET status = 'CANCELLED', cancel_requested_at = finished_at,"
        " cancel_requested_by = 'user:ada', cancel_reason = 'enough', stopped_at = NULL,"
        ' late_result = 1, holding = \'["nap"]\', output = \'{"y":1,"x":null}\','
        " reasoning_content = 'hm' WHERE session_id = 's4' AND seq = 2",
    )
    in_database(
        config,
        'UPDATE sessions SET summary = \'{"summary":"s","topics":[]}\', metadata = \'{}\','
        " last_status = CASE WHEN session_id = 's4' THEN 'CANCELLED' ELSE last_status END",
    )
    data = export(run, config)
    statuses = [each["status"] for line in data.splitlines() for each in json.loads(line)["runs"]]
    assert {"COMPLETED", "ERROR", "CANCELLED"} == set(statuses)
    assert len(statuses) > 8
    return data


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_project(tmp_path / "target")


def import_file(agentctl: Agentctl, config: Path, data: bytes, *words: str) -> Result:
    words = ("sessions", "import", "-", *words, "--config", str(config), "-o", "json")
    return agentctl(*words, input=data)


def count(ended: Result) -> dict[str, int]:
    return {row["what"]: row["count"] for row in json.loads(ended.stdout)}


def test_an_export_is_imported_exactly(agentctl: Agentctl, config: Path, exported: bytes) -> None:
    file = config.with_name("sessions.jsonl")
    file.write_bytes(exported)
    runs = sum(len(json.loads(line)["runs"]) for line in exported.splitlines())
    words = ("sessions", "import", str(file), "--config", str(config), "-o", "json")
    ended = agentctl(*words)
    assert (ended.code, count(ended)) == (0, {"sessions": 4, "runs": runs}), ended.stderr
    assert export(agentctl, config) == exported
    again = agentctl(*words)
    assert count(again) == {"sessions that existed": 4, "runs that existed": runs}
    assert export(agentctl, config) == exported
    assert agentctl("doctor", "--db", "--config", str(config)).code == 0
    started = agentctl(
        "runs", "start", "--agent", "echo", "-m", "more", "--session", "s1", "--config", str(config)
    )
    assert started.stdout == "more\n"
    listed = agentctl("sessions", "list", "-o", "json", "--config", str(config))
    [first] = [each for each in json.loads(listed.stdout)["data"] if each["session_id"] == "s1"]
    assert first["run_count"] == 3


def test_an_array_is_imported_exactly(agentctl: Agentctl, config: Path, exported: bytes) -> None:
    array = b"[" + b",\n".join(exported.splitlines()) + b"]\n"
    ended = import_file(agentctl, config, array)
    assert ended.code == 0, ended.stderr
    assert export(agentctl, config, "json") == array


Change = Callable[[Record], object]


def change_run(**values: object) -> Change:
    return lambda record: record["runs"][1].update(values)


def change_session(**values: object) -> Change:
    return lambda record: record["session"].update(values)


REFUSED: dict[str, Change] = {
    "session or runs is missing": lambda record: record.pop("session"),
    "session_id must be": change_session(session_id="a/b"),
    "none of agent_data": lambda record: record["session"].pop("agent_data"),
    "agent_data is missing or has a wrong type": change_session(
        agent_data=5, team_data={}, team_id=""
    ),
    "session_name is longer": change_session(session_name="n" * 256),
    "session.created_at is not a time": change_session(created_at="9999-12-31T23:59:59-23:59"),
    "metrics.input_tokens is not a number": change_session(metrics={"input_tokens": -1}),
    "chat_history is missing": change_session(chat_history=None),
    "runs[1].run_id must be": change_run(run_id=""),
    "is that of an earlier run": lambda record: record["runs"].append(record["runs"][0]),
    "runs[1].parent_run_id is not": change_run(parent_run_id="unknown"),
    "needs one of agent_id": change_run(team_id="pair"),
    "session_id is not the id": change_run(session_id="s9"),
    "status must be one of": change_run(status="SLEEPING"),
    "cancel_requested_at is missing": change_run(status="CANCELLED"),
    "finished_at is missing": change_run(finished_at=None),
    "finished_at is before": change_run(finished_at="2020-01-01T00:00:00Z"),
    "error is missing": change_run(status="ERROR"),
    "purpose or": change_run(purpose="fun"),
    "input must not contain NUL": change_run(input="\0"),
    "runs[1].input": change_run(input=5),
    "messages[0].role is unknown": change_run(messages=[{"role": "boss", "content": ""}]),
    "messages[0].content is not": change_run(messages=[{"role": "user", "content": None}]),
    "messages[0].tool_calls": change_run(
        messages=[{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}]
    ),
    "tools[0].tool_call_id is missing": change_run(tools=[{"tool_name": "f"}]),
    "metrics.total_tokens is not": change_run(metrics={"total_tokens": 10**30}),
    "session.user_id is not the name": change_session(user_id="sa:x"),
    "runs[1].user_id is not that of the session": change_run(user_id="eve"),
    "a value has too many levels": change_session(
        metadata={"a": json.loads("[" * 300 + "]" * 300)}
    ),
    "session.agent_id has control characters": change_session(agent_id="a\x1b[2J"),
    "runs[1].agent_id has control characters": change_run(agent_id="echo\x1b"),
}


def list_large_changes() -> dict[str, Change]:
    """Return changes with 30 MB of text: a constant would keep them until the end of all tests."""
    return {
        "session.session_state is larger": change_session(session_state={"a": "x" * 5_000_000}),
        "session.metadata is larger": change_session(metadata={"a": "x" * 1_100_000}),
        "runs[1].content is larger": change_run(content="é" * 9_000_000),
        "runs[1].messages is larger": change_run(
            messages=[{"role": "user", "content": "x" * 17_000_000}]
        ),
    }


def test_a_malformed_file_changes_nothing(
    agentctl: Agentctl, config: Path, exported: bytes
) -> None:
    lines = exported.splitlines()
    for text, change in (REFUSED | list_large_changes()).items():
        record = json.loads(lines[0])
        change(record)
        data = b"\n".join([*lines[1:], json.dumps(record).encode()])
        ended = import_file(agentctl, config, data)
        assert (ended.code, ended.stdout) == (2, ""), text
        assert "stdin cannot be imported" in ended.stderr
        assert f"line {len(lines)}: " in ended.stderr
        assert text in ended.stderr
    for data, text in (
        (exported[:-9], "line 4: it is not complete JSON"),
        (lines[0] + b"\n" + lines[0], "line 2: session s1 is in the file twice"),
        (b"[" + lines[0], "it is not complete JSON"),
        (b"[1]", "[0]: the value is missing or has a wrong type"),
        (b"# one\n", "neither JSON Lines nor a JSON array"),
    ):
        ended = import_file(agentctl, config, data)
        assert ended.code == 2, text
        assert text in ended.stderr
    assert not config.with_name("agentctl.db").exists()


def test_live_and_taken_runs_are_left_out(
    agentctl: Agentctl, config: Path, exported: bytes
) -> None:
    [first, team, *_] = (json.loads(line) for line in exported.splitlines())
    whole = b"".join(json.dumps(each).encode() + b"\n" for each in (first, team))
    leader = team["runs"][0]
    member = team["runs"][1]
    leader.update(status="RUNNING", finished_at=None, stopped_at=None, messages=[])
    team["session"]["chat_history"] = []
    part = b"".join(json.dumps(each).encode() + b"\n" for each in (first, team))
    ended = import_file(agentctl, config, part)
    assert (ended.code, count(ended)) == (1, {"sessions": 2, "runs": 2})
    assert f"left out: {leader['run_id']}: the run is RUNNING" in ended.stderr
    assert f"left out: {member['run_id']}: its parent is left out" in ended.stderr
    ended = import_file(agentctl, config, whole)
    assert ended.code == 0, ended.stderr
    assert count(ended)["runs"] == len(team["runs"])
    other = json.loads(json.dumps(first).replace('"s1"', '"s9"'))
    ended = import_file(agentctl, config, json.dumps(other).encode())
    assert (ended.code, count(ended)) == (1, {"sessions": 1})
    assert ended.stderr.count("a run of another session has the id") == 2
    for row in (first["session"], *first["runs"]):
        row["user_id"] = "eve"
    ended = import_file(agentctl, config, json.dumps(first).encode())
    assert "s1: a session of another type or user has the id" in ended.stderr
    assert agentctl("doctor", "--db", "--config", str(config)).code == 0


def test_sessions_beyond_a_quota_are_left_out(
    agentctl: Agentctl, config: Path, exported: bytes
) -> None:
    config.write_text(CONFIG + "[quotas]\nsessions_per_user = 1\n")
    owners = {json.loads(line)["session"]["user_id"] for line in exported.splitlines()}
    assert len(owners) == 2
    ended = import_file(agentctl, config, exported)
    assert (ended.code, count(ended)["sessions"]) == (1, 2), ended.stderr
    assert ended.stderr.count("raise quotas.sessions_per_user") == 2
    again = import_file(agentctl, config, exported)
    assert count(again)["sessions that existed"] == 2
    config.write_text(CONFIG + "[quotas]\nbytes_per_user = 100\n")
    ended = import_file(agentctl, config, exported)
    assert "raise quotas.bytes_per_user" in ended.stderr
    config.write_text(CONFIG)
    assert import_file(agentctl, config, exported).code == 0
    assert export(agentctl, config) == exported


def test_a_dry_run_changes_nothing(agentctl: Agentctl, config: Path, exported: bytes) -> None:
    missing = import_file(agentctl, config, exported, "--dry-run")
    assert missing.code == 7, missing.stderr
    lines = exported.splitlines()
    assert import_file(agentctl, config, lines[0]).code == 0
    before = export(agentctl, config)
    ended = import_file(agentctl, config, exported, "--dry-run")
    counts = count(ended)
    assert (ended.code, counts["sessions"], counts["sessions that existed"]) == (0, 3, 1)
    assert "nothing was changed" in ended.stderr
    assert export(agentctl, config) == before


def test_an_import_is_local(agentctl: Agentctl, config: Path) -> None:
    ended = agentctl("sessions", "import", "none.jsonl", "--url", "http://127.0.0.1:9")
    assert (ended.code, "this works only locally" in ended.stderr) == (2, True)
    ended = agentctl("sessions", "import", "none.jsonl", "--config", str(config))
    assert (ended.code, "none.jsonl cannot be read" in ended.stderr) == (2, True)
    ended = import_file(agentctl, config, b"", "--db", "other")
    assert (ended.code, "configured databases: main" in ended.stderr) == (5, True)


def test_server_does_not_show_the_deleted_text_of_an_edited_import(tmp_path: Path) -> None:
    """The history of a long session is kept in memory; the edit changes no size and no time."""
    config = write_project(tmp_path)
    config.write_text(f"[authorization]\nenabled = false\n{CONFIG}")

    def execute(*arguments: str) -> None:
        done = run_command(*arguments, folder=tmp_path, environment=base_environment())
        assert done.code == 0, done.stderr

    with (
        serve_in_thread(Deployment(tmp_path)) as served,
        httpx2.Client(base_url=served.url, timeout=PATIENCE) as client,
    ):
        body = {"message": "SECRET " + "word " * 8_000, "session_id": "long", "stream": False}
        for _ in range(2):
            assert client.post("/agents/echo/runs", json=body).status_code == 200
        for text, edited in (("SECRET", "PUBLIC"), ("PUBLIC", "EDITED")):
            assert text in client.get("/sessions/long").text
            file = tmp_path / f"{text}.jsonl"
            execute("sessions", "export", "long", "--to-file", str(file))
            file.write_text(file.read_text().replace(text, edited))
            assert client.delete("/sessions/long").status_code == 204
            execute("sessions", "import", str(file))
            found = client.get("/sessions/long").text
            assert edited in found
            assert text not in found
