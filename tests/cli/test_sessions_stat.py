"""`agentctl sessions stat` and `sessions export`, locally and on a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.cli.show.bars import draw_bar
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo

pytestmark = pytest.mark.slow


@pytest.fixture
def at_demo(demo: Demo) -> tuple[str, ...]:
    for _ in range(2):
        demo.run("stat-1", "one two three")
    demo.run("stat-2", "four")
    return ("--url", demo.url)


def test_statistics_are_the_sums_of_the_runs(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...]
) -> None:
    env = {"AGENTCTL_TOKEN": demo.token}
    ended = agentctl("sessions", "stat", "--session", "stat-1", *at_demo, "-o", "json", env=env)
    [row] = json.loads(ended.stdout)
    runs = agentctl("sessions", "runs", "stat-1", *at_demo, "-o", "jsonl", env=env)
    records = [json.loads(line) for line in runs.lines]
    assert row["component"] == "echo"
    assert row["runs"] == len(records)
    for counter in ("input_tokens", "output_tokens", "total_tokens"):
        assert row[counter] == sum(record["metrics"][counter] for record in records)
    assert row["cost"] is None
    priced = agentctl(
        "sessions", "stat", "--session", "stat-1", "--input-price", "1000000",
        *at_demo, "-o", "json", env=env,
    )  # fmt: skip
    assert json.loads(priced.stdout)[0]["cost"] == row["input_tokens"]


@pytest.mark.parametrize("by", ["component", "user", "session", "day", "hour"])
def test_both_doors_have_the_same_statistics(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...], by: str
) -> None:
    wanted = ("sessions", "stat", "--by", by, "--session", "stat-2", "-o", "json")
    remote = agentctl(*wanted, *at_demo, env={"AGENTCTL_TOKEN": demo.token})
    local = agentctl(*wanted, "--config", str(demo.config))
    assert json.loads(remote.stdout) == json.loads(local.stdout) != []


def test_a_terminal_shows_bars(terminal: Terminal, demo: Demo, at_demo: tuple[str, ...]) -> None:
    seen = terminal("sessions", "stat", *at_demo, env={"AGENTCTL_TOKEN": demo.token})
    assert "COMPONENT" in seen.screen
    assert "echo" in seen.screen


def test_bars_are_in_proportion() -> None:
    assert len(draw_bar(100, 100)) == 20
    assert len(draw_bar(50, 100)) == 10
    assert draw_bar(0, 100) == draw_bar(5, 0) == ""
    assert len(draw_bar(1, 1_000_000)) == 1


def test_an_export_has_whole_sessions(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...], tmp_path: Path
) -> None:
    env = {"AGENTCTL_TOKEN": demo.token}
    file = tmp_path / "sessions.jsonl"
    ended = agentctl(
        "sessions", "export", "stat-1", "stat-2", "--to-file", str(file), *at_demo, env=env
    )
    assert (ended.code, ended.stdout) == (0, "")
    exported = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["session"]["session_id"] for each in exported] == ["stat-1", "stat-2"]
    runs = agentctl("sessions", "runs", "stat-1", *at_demo, "-o", "jsonl", env=env)
    assert exported[0]["runs"] == [json.loads(line) for line in runs.lines]
    again = agentctl("sessions", "export", "stat-1", "--to-file", str(file), *at_demo, env=env)
    assert again.code == 6
    assert [json.loads(line) for line in file.read_text().splitlines()] == exported


def test_an_export_of_all_is_an_array_or_transcripts(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...]
) -> None:
    local = ("--config", str(demo.config))
    whole = agentctl("sessions", "export", "--all", "--format", "json", *local)
    ids = {each["session"]["session_id"] for each in json.loads(whole.stdout)}
    assert {"stat-1", "stat-2"} <= ids
    none = agentctl("sessions", "export", "--all", "--user", "nobody", "--format", "json", *local)
    assert json.loads(none.stdout) == []
    read = agentctl("sessions", "export", "stat-2", "--format", "markdown", *local)
    assert "> four" in read.lines
    assert "\nfour\n" in read.stdout


@pytest.mark.parametrize("arguments", [(), ("s1", "--all")])
def test_an_export_needs_ids_or_all(
    agentctl: Agentctl, demo: Demo, arguments: tuple[str, ...]
) -> None:
    ended = agentctl("sessions", "export", *arguments, "--config", str(demo.config))
    assert ended.code == 2
    assert "give a SESSION_ID, or --all" in ended.stderr
