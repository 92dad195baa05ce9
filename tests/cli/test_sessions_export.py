"""`agentctl sessions export`, locally and on a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo

pytestmark = pytest.mark.slow


@pytest.fixture
def at_demo(demo: Demo) -> tuple[str, ...]:
    for _ in range(2):
        demo.run("kept-1", "one two three")
    demo.run("kept-2", "four")
    return ("--url", demo.url)


def test_an_export_has_whole_sessions(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...], tmp_path: Path
) -> None:
    env = {"AGENTCTL_TOKEN": demo.token}
    file = tmp_path / "sessions.jsonl"
    ended = agentctl(
        "sessions", "export", "kept-1", "kept-2", "--to-file", str(file), *at_demo, env=env
    )
    assert (ended.code, ended.stdout) == (0, "")
    exported = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["session"]["session_id"] for each in exported] == ["kept-1", "kept-2"]
    runs = agentctl("sessions", "runs", "kept-1", *at_demo, "-o", "jsonl", env=env)
    assert exported[0]["runs"] == [json.loads(line) for line in runs.lines]
    again = agentctl("sessions", "export", "kept-1", "--to-file", str(file), *at_demo, env=env)
    assert again.code == 6
    assert [json.loads(line) for line in file.read_text().splitlines()] == exported


def test_an_export_of_all_is_an_array_or_transcripts(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...]
) -> None:
    local = ("--config", str(demo.config))
    whole = agentctl("sessions", "export", "--all", "--format", "json", *local)
    ids = {each["session"]["session_id"] for each in json.loads(whole.stdout)}
    assert {"kept-1", "kept-2"} <= ids
    none = agentctl("sessions", "export", "--all", "--user", "nobody", "--format", "json", *local)
    assert json.loads(none.stdout) == []
    read = agentctl("sessions", "export", "kept-2", "--format", "markdown", *local)
    assert "> four" in read.lines
    assert "\nfour\n" in read.stdout


def test_an_export_has_the_model_calls_of_each_run(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...]
) -> None:
    env = {"AGENTCTL_TOKEN": demo.token}
    words = ("sessions", "export", "kept-1", "--model-calls", *at_demo)
    (whole,) = json.loads(agentctl(*words, "--format", "json", env=env).stdout)
    read = agentctl(*words, "--format", "markdown", env=env)
    for run in whole["runs"]:
        words = ("runs", "get", run["run_id"], "--model-calls", *at_demo)
        calls = agentctl(*words, "-o", "jsonl", env=env)
        assert whole["model_calls"][run["run_id"]] == [json.loads(each) for each in calls.lines]
        assert f"Model calls of `{run['run_id']}`:\n\n- model-1: " in read.stdout
    last = whole["model_calls"][whole["runs"][-1]["run_id"]][0]
    sources = [each["source"] for each in last["references"]]
    assert sources[-2:] == ["history", "run"]
    assert last["message_count"] == sum(each["end"] - each["first"] for each in last["references"])


@pytest.mark.parametrize("arguments", [(), ("s1", "--all")])
def test_an_export_needs_ids_or_all(
    agentctl: Agentctl, demo: Demo, arguments: tuple[str, ...]
) -> None:
    ended = agentctl("sessions", "export", *arguments, "--config", str(demo.config))
    assert ended.code == 2
    assert "give a SESSION_ID, or --all" in ended.stderr
