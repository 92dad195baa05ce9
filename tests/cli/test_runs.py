"""`agentctl runs`: start, list, get and cancel."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentctl.cli.root import app
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.cli.local_project import running_command
from tests.kit.conditions import PATIENCE
from tests.kit.process import start_agentctl
from tests.kit.tables import every_row

_numbers = itertools.count()

ECHO = ("runs", "start", "--agent", "echo")
FAILING = """
[[databases]]
id = "main"
url = "sqlite:///broken.db"
[[models]]
id = "gone"
provider = "openai"
model = "none"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "HOME"
[[agents]]
id = "broken"
model = "gone"
"""
MORE_FAILING = """
[[models]]
id = "leader"
provider = "demo"
model = "leader"
[[agents]]
id = "clerk"
model = "leader"
tools = ["shopp:price"]
[[teams]]
id = "crew"
model = "leader"
members = ["broken"]
[[workflows]]
id = "steps"
steps = [{ name = "one", agent = "broken" }]
"""


@pytest.fixture
def session() -> str:
    return f"r-{next(_numbers)}"


def test_stdout_has_only_the_text_of_the_run(through: Agentctl, session: str) -> None:
    ended = through(*ECHO, "--message", "hello\n wörld", "--session", session)
    assert (ended.code, ended.stdout) == (0, "hello\n wörld\n")
    started, finished = ended.stderr.splitlines()[-2:]
    assert started.startswith("started run ")
    assert f" of session {session} " in started
    assert re.search(r" completed in [\d.]+ m?s, \d+ tokens \(\d+ in, \d+ out\)$", finished)


@every_row("kind", [("--team", "duo"), ("--workflow", "relay")])
def test_text_of_members_and_steps_is_not_on_stdout(
    on_demo: Agentctl, kind: tuple[str, str]
) -> None:
    assert on_demo("runs", "start", *kind, "--message", "hello there").stdout == "hello there\n"


def test_the_message_can_come_from_stdin(on_demo: Agentctl) -> None:
    assert on_demo(*ECHO, "--message", "-", input="line one\nline two\n").lines == [
        "line one",
        "line two",
    ]
    assert on_demo(*ECHO, "--message", "-", input=b"\xff").code == 2
    assert on_demo(*ECHO, "--message", "-").code == 2


def test_json_is_the_record_and_jsonl_the_events(on_demo: Agentctl, session: str) -> None:
    record = json.loads(on_demo(*ECHO, "-m", "hi", "--session", session, "-o", "json").raw)
    assert (record["status"], record["content"]) == ("COMPLETED", "hi")
    stored = on_demo("runs", "get", record["run_id"], "-o", "json")
    assert json.loads(stored.raw) == record
    lines = on_demo(*ECHO, "-m", "hi", "--session", session, "-o", "jsonl").lines
    events = [json.loads(line)["event"] for line in lines]
    assert (events[0], events[-1]) == ("RunStarted", "RunCompleted")
    name = on_demo(*ECHO, "-m", "hi", "--session", session, "-o", "name", "--no-stream").lines
    assert on_demo("runs", "get", name[0], "-o", "name").lines == name


def test_run_shows_the_objects_of_its_request(on_demo: Agentctl, session: str) -> None:
    start = (*ECHO, "-m", "hi", "--session", session, "-o", "json")
    pairs = ("--metadata", "a=1", "--metadata", "b=x=y", "--session-state", '{"n":[1],"kept":true}')
    record = json.loads(on_demo(*start, *pairs).raw)
    assert record["metadata"] == {"a": "1", "b": "x=y"}
    assert record["session_state"] == {"n": [1], "kept": True}
    shown = on_demo("runs", "get", record["run_id"], "-o", "table").stdout
    assert "x=y" in shown
    second = json.loads(
        on_demo(*start, "--metadata", '{"k": {"v": 2}}', "--session-state", '{"n": 2}').raw
    )
    assert second["metadata"] == {"k": {"v": 2}}
    stored = json.loads(on_demo("sessions", "get", session, "-o", "json").raw)
    assert stored["session_state"] == {"n": 2, "kept": True}
    assert json.loads(on_demo(*start).raw)["metadata"] is None


@every_row(
    "args",
    [
        ("--message", "x"),
        ("--agent", "echo"),
        ("--agent", "echo", "--team", "duo", "--message", "x"),
        ("--agent", "echo", "--message", "x", "--session", "a/b"),
        ("--agent", "echo", "--message", "x", "-o", "json", "--stream"),
        ("--agent", "echo", "--message", ""),
        ("--agent", "echo", "--message", "x", "--metadata", "no-value"),
        ("--agent", "echo", "--message", "x", "--metadata", "a=1", "--metadata", "a=2"),
        ("--agent", "echo", "--message", "x", "--metadata", '{"a": NaN}'),
        ("--agent", "echo", "--message", "x", "--metadata", '{"a": 1}', "--metadata", "b=2"),
        ("--agent", "echo", "--message", "x", "--session-state", "[1]"),
        ("--agent", "echo", "--message", "x", "--session-state", "{"),
    ],
)
def test_wrong_options_of_start_are_usage_errors(on_demo: Agentctl, args: tuple[str, ...]) -> None:
    ended = on_demo("runs", "start", *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")


def test_background_needs_a_server(agentctl: Agentctl, demo: Demo, tmp_path: Path) -> None:
    assert agentctl("init", str(tmp_path / "new")).code == 0
    config = tmp_path / "new" / "agentctl.toml"
    ended = agentctl(*ECHO, "-m", "x", "--background", "--config", str(config))
    assert (ended.code, ended.stdout) == (2, "")
    assert "--url" in ended.stderr
    assert not (tmp_path / "new" / "agentctl.db").exists()


def test_a_failed_run_is_exit_code_1(agentctl: Agentctl, tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(FAILING)
    start = ("runs", "start", "--agent", "broken", "-m", "x", "--config", str(config))
    ended = agentctl(*start)
    assert (ended.code, ended.stdout) == (1, "")
    error, cause, _, hint = ended.stderr.splitlines()[1:]
    assert error.endswith(" failed")
    assert cause.startswith("  cause: MODEL_UNAVAILABLE: The model is not available now (the model")
    assert hint.startswith(f"hint: check base_url and the key of the model in {config}")
    recorded = agentctl(*start, "-o", "json")
    assert recorded.code == 1
    assert json.loads(recorded.raw)["error"]["code"] == "MODEL_UNAVAILABLE"
    assert recorded.stderr.count("MODEL_UNAVAILABLE") == 1


@pytest.mark.parametrize(
    ("named", "cause", "hint"),
    [
        (
            ("--agent", "broken"),
            "MODEL_UNAVAILABLE: The API key of the model gone is not set: set KEY_OF_GONE",
            "set the variable KEY_OF_GONE, which the model gone reads",
        ),
        (
            ("--workflow", "steps"),
            "MODEL_UNAVAILABLE: The step one failed: The API key of the model gone is not set: set"
            " KEY_OF_GONE",
            "set the variable KEY_OF_GONE, which the model gone reads",
        ),
        (
            ("--agent", "clerk"),
            "The agent clerk cannot use the tool 'shopp:price': its module cannot be imported"
            " (ModuleNotFoundError: No module named 'shopp')",
            "put shopp.py next to the configuration file, or install it",
        ),
    ],
)
def test_a_local_failure_is_reported_once_with_a_hint(
    tmp_path: Path, named: tuple[str, str], cause: str, hint: str
) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(FAILING.replace('"HOME"', '"KEY_OF_GONE"') + MORE_FAILING)
    ended = CliRunner().invoke(
        app, ["runs", "start", *named, "-m", "x", "--no-stream", "--config", str(config)]
    )
    assert (ended.exit_code, ended.stdout) == (1, "")
    said = ended.stderr.splitlines()
    assert len(said) == 5
    assert said[2:] == [f"  cause: {cause}", "", f"hint: {hint}"]


def test_a_failed_member_of_a_successful_team_is_noted(tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(FAILING.replace('"HOME"', '"KEY_OF_GONE"') + MORE_FAILING)
    ended = CliRunner().invoke(
        app, ["runs", "start", "--team", "crew", "-m", "x", "--config", str(config)]
    )
    assert ended.exit_code == 0
    assert ended.stderr.splitlines()[-1] == (
        "warning: model gone: the environment variable KEY_OF_GONE is not set"
    )


def test_cancel_stops_a_run_and_reports_it(on_demo: Agentctl, demo: Demo, session: str) -> None:
    run_id = demo.run(session, "hello", agent="slow", leave=True)
    stopped = on_demo("runs", "cancel", run_id, "--reason", "wrong question", "-o", "json")
    record = json.loads(stopped.raw)
    assert (stopped.code, record["cancel"], record["status"]) == (0, "stopped", "CANCELLED")
    assert record["reason"] == "wrong question"
    assert f"stopped run {run_id} " in stopped.stderr
    *_, facts = stopped.stderr.splitlines()
    assert re.fullmatch(r"  cancel requested [\d:.]{11} by \S+; stopped [\d:.]{11}", facts), facts
    assert (record["holding"], record["stopped_at"]) == ([], record["finished_at"])
    again = on_demo("runs", "cancel", run_id, "--agent", "slow", "--session", session)
    assert again.code == 0
    assert "already final, CANCELLED" in again.stderr


def test_cancel_without_waiting_is_exit_code_8(
    agentctl: Agentctl, demo: Demo, session: str
) -> None:
    for _ in range(10):
        run_id = demo.run(session, "hello", agent="slow", leave=True)
        ended = agentctl("runs", "cancel", run_id, "--wait", "0", "--config", str(demo.config))
        # The server may stop the run before the command has read its status.
        if ended.code:
            break
    assert (ended.code, ended.lines[1].split("\t")[2]) == (8, "requested")
    assert "error: cancel requested, but 1 run not stopped yet" in ended.stderr
    hint = ended.stderr.splitlines()[-1]
    assert hint == f"hint: check again with: agentctl runs get {run_id} --config {demo.config}"
    again = hint.removeprefix("hint: check again with: agentctl ").split()
    assert agentctl(*again, "-o", "name").lines == [run_id]


def test_a_long_wait_takes_several_requests(
    on_demo: Agentctl, demo: Demo, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.interface.operations.cancels.MAXIMUM_CANCEL_WAIT", 0.001)
    run_id = demo.run(session, "hello", agent="slow", leave=True)
    ended = on_demo("runs", "cancel", run_id, "--wait", "60", "-o", "json")
    assert (ended.code, json.loads(ended.raw)["status"]) == (0, "CANCELLED")


def test_a_terminal_shows_progress(terminal: Terminal, demo: Demo) -> None:
    seen = terminal(
        *("runs", "start", "--agent", "slow", "-m", "hello", "--no-stream"),
        *("--config", str(demo.config)),
        env={"TERM": "xterm"},
        types="\x03",
        when="waiting for the run, Ctrl-C cancels it, ",
    )
    assert seen.code == 130
    last = re.sub(r"\x1b\[[?0-9]*[A-Za-z]|\r", "", seen.screen.splitlines()[-1])
    assert last.startswith("interrupted: check the run with")


def test_cancel_of_several_runs_reports_each(on_demo: Agentctl, demo: Demo, session: str) -> None:
    run_id = demo.run(session, "hello")
    ended = on_demo("runs", "cancel", run_id, "nowhere", "-o", "jsonl")
    assert ended.code == 1
    assert [json.loads(line)["run_id"] for line in ended.lines] == [run_id]
    assert "error: run not found: nowhere" in ended.stderr
    assert ended.stderr.endswith("error: 1 of 2 failed\n")
    assert on_demo("runs", "cancel", "nowhere").code == 5


@pytest.mark.parametrize(
    ("number", "code", "remotely"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGHUP, 129, True)],
)
def test_a_signal_cancels_the_run(
    agentctl: Agentctl,
    demo: Demo,
    environment: dict[str, str],
    session: str,
    number: signal.Signals,
    code: int,
    remotely: bool,
) -> None:
    door = ("--url", demo.url) if remotely else ("--config", str(demo.config))
    words = ("runs", "start", "--agent", "slow", "-m", "hello", "--session", session, *door)
    variables = environment | ({"AGENTCTL_TOKEN": demo.token} if remotely else {})
    options: dict[str, Any] = {}
    if number == signal.SIGHUP:
        # nohup makes all processes of the suite ignore this signal, also those that are forked.
        options["preexec_fn"] = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = start_agentctl(
        *words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"hello "
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert said.decode().splitlines()[-1].endswith(" is CANCELLED")
    found = agentctl("runs", "list", "--session", session, "--config", str(demo.config))
    assert found.lines[1].split("\t")[4] == "CANCELLED"


def test_an_interrupt_at_a_terminal_ends_the_line(terminal: Terminal, demo: Demo) -> None:
    seen = terminal(
        *("runs", "start", "--agent", "slow", "-m", "hello", "--config", str(demo.config)),
        types="\x03",
        when="hello hello ",
    )
    assert seen.code == 130
    assert seen.screen.splitlines()[-1].startswith("interrupted: run ")


def test_a_closed_pipe_is_no_error(demo: Demo, environment: dict[str, str], session: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    start = (*ECHO, "-m", "hello", "--session", session, "--config", str(demo.config))
    with start_agentctl(*start, env=environment, stdout=writing, stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=PATIENCE)
    os.close(writing)
    assert process.returncode == 0
    assert b"rror" not in said


@every_row("words", [("sessions", "list"), ("--help",)])
def test_a_closed_pipe_ends_every_kind_of_output(
    demo: Demo, environment: dict[str, str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    door = () if words == ("--help",) else ("--config", str(demo.config))
    log = tmp_path / "log"
    with running_command(*words, *door, environment=environment, log=log) as command:
        command.stdout.close()
        assert command.wait(PATIENCE) == 0
    assert "rror" not in log.read_text()
