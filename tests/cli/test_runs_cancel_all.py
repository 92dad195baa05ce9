"""`agentctl runs cancel --all`: many runs selected by filters."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.cli.commands.runs import cancel
from agentctl.cli.show.progress import Counter
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.cli.local_project import in_database, running_command, write_config
from tests.kit.conditions import PATIENCE
from tests.kit.tables import every_row

_numbers = itertools.count()

CANCEL = ("runs", "cancel", "--all")


@pytest.fixture
def session() -> str:
    return f"c-{next(_numbers)}"


@pytest.fixture
def three(demo: Demo, session: str, agentctl: Agentctl) -> Iterator[set[str]]:
    """The ids of three live runs in a new session."""
    run_ids = {demo.run(session, "one two", agent="slow", leave=True) for _ in range(3)}
    while statuses(agentctl, demo, session) != ["RUNNING"] * 3:
        pass
    yield run_ids
    agentctl(*CANCEL, "--session", session, "--yes", "--config", str(demo.config))


def statuses(agentctl: Agentctl, demo: Demo, session: str) -> list[str]:
    ended = agentctl("runs", "list", "--session", session, "--config", str(demo.config))
    return [line.split("\t")[4] for line in ended.lines[1:]]


def test_all_matching_runs_are_stopped(
    on_demo: Agentctl, agentctl: Agentctl, demo: Demo, session: str, three: set[str]
) -> None:
    other = demo.run(f"{session}-other", "one", agent="slow", leave=True)
    ended = on_demo(*CANCEL, "--session", session, "--yes", "--reason", "tidy", "-o", "json")
    records = json.loads(ended.raw)
    assert ended.code == 0
    assert {record["run_id"] for record in records} == three
    assert {record["cancel"] for record in records} == {"stopped"}
    assert {record["reason"] for record in records} == {"tidy"}
    assert ended.stderr.splitlines()[-1].startswith("3 runs: 3 stopped, ")
    assert statuses(agentctl, demo, session) == ["CANCELLED"] * 3
    assert statuses(agentctl, demo, f"{session}-other")[0] in ("PENDING", "RUNNING")
    agentctl("runs", "cancel", other, "--config", str(demo.config))


def test_cancel_all_reads_every_page(
    on_demo: Agentctl, session: str, three: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel, "MAXIMUM_LIMIT", 1)
    found = on_demo(*CANCEL, "--session", session, "--dry-run", "-o", "name")
    assert (found.code, set(found.lines)) == (0, three)
    assert len(on_demo(*CANCEL, "--session", session, "--yes").lines) == 4


def test_a_dry_run_changes_nothing(
    on_demo: Agentctl, agentctl: Agentctl, demo: Demo, session: str, three: set[str]
) -> None:
    shown = on_demo(*CANCEL, "--session", session, "--dry-run", "-o", "json")
    records = json.loads(shown.raw)
    assert shown.code == 0
    assert {record["run_id"] for record in records} == three
    assert "messages" not in records[0]
    assert shown.stderr.splitlines()[-1].startswith("3 runs would be cancelled ")
    assert statuses(agentctl, demo, session) == ["RUNNING"] * 3


FILTERS = [
    (("--agent", "slow"), 3),
    (("--agent", "echo"), 0),
    (("--team", "duo"), 0),
    (("--workflow", "relay"), 0),
    (("--type", "agent"), 3),
    (("--type", "team"), 0),
    (("--component", "slow"), 3),
    (("--status", "RUNNING"), 3),
    (("--status", "PENDING"), 0),
    (("--user", "ada"), 3),
    (("--user", "nobody"), 0),
    (("--older-than", "0s"), 3),
    (("--older-than", "1h"), 0),
    (("--newer-than", "1h"), 3),
    (("--newer-than", "0s"), 0),
    (("--metadata", "ticket=17"), 1),
    (("--metadata", "ticket=18"), 0),
    (("--tag", "vip"), 2),
    (("--tag", "vip", "--tag", "night"), 1),
    (("--tag", "vip", "--metadata", "ticket=17", "--newer-than", "1h"), 1),
]


def test_cancel_all_filters(on_demo: Agentctl, demo: Demo, session: str, three: set[str]) -> None:
    first, second, _ = three
    for run_id, metadata in (
        (first, {"tags": ["vip", "night"], "ticket": 17}),
        (second, {"tags": ["vip"]}),
    ):
        values = (json.dumps(metadata), run_id)
        in_database(demo.config, "UPDATE runs SET metadata = ? WHERE run_id = ?", values)
    for options, count in FILTERS:
        found = on_demo(*CANCEL, "--session", session, *options, "--dry-run", "-o", "name")
        assert (found.code, len(found.lines)) == (0, count), options
    done = on_demo(*CANCEL, "--session", session, "--tag", "night", "--yes", "-o", "name")
    assert (done.code, done.lines) == (0, [first])


def test_no_matching_runs_is_exit_code_0(on_demo: Agentctl, session: str) -> None:
    ended = on_demo(*CANCEL, "--session", session, "--yes", "-o", "table")
    assert (ended.code, ended.stdout) == (0, "")
    assert ended.stderr.startswith("no live runs to cancel ")
    assert on_demo(*CANCEL, "--session", session, "--yes", "-o", "json").stdout == "[]\n"


def test_members_stop_with_their_team(
    agentctl: Agentctl, environment: dict[str, str], tmp_path: Path
) -> None:
    here = ("--config", str(write_config(tmp_path)))
    start = ("runs", "start", "--team", "pair", "-m", "word", *here)
    agentctl("runs", "start", "--agent", "echo", "-m", "x", *here)
    with running_command(*start, environment=environment, log=tmp_path / "team.log") as worker:
        while len(agentctl("runs", "list", "--live", "-o", "name", *here).lines) < 2:
            assert worker.poll() is None
        shown = agentctl(*CANCEL, "--dry-run", "-o", "tsv", *here)
        assert [line.split("\t")[2] for line in shown.lines[1:]] == ["pair"]
        assert shown.stderr.startswith("1 run and 1 run of members would be cancelled ")
        assert agentctl(*CANCEL, "--yes", *here).code == 0
        assert worker.wait(PATIENCE) == 1
    rows = agentctl("runs", "list", "--newer-than", "1h", *here).lines[1:3]
    assert [row.split("\t")[4] for row in rows] == ["CANCELLED"] * 2


@every_row(
    "args, part",
    [
        (("runs", "cancel", "some-id", "--all"), "--all and RUN_ID cannot be used together"),
        (("runs", "cancel"), "no runs given"),
        (("runs", "cancel", "--agent", "slow"), "no runs given"),
        (("runs", "cancel", "--older-than", "1h"), "--older-than is a filter and needs"),
        (("runs", "cancel", "some-id", "--tag", "vip"), "--tag is a filter and needs"),
        (("runs", "cancel", "some-id", "--metadata", "a=b"), "--metadata is a filter and needs"),
        (("runs", "cancel", "some-id", "--user", "ada"), "--user is a filter and needs"),
        (("runs", "cancel", "some-id", "--dry-run"), "--dry-run is a filter and needs"),
        (
            (*CANCEL, "--status", "COMPLETED", "--yes"),
            "--status must be PENDING, RUNNING or PAUSED, not",
        ),
        ((*CANCEL, "--older-than", "10", "--yes"), "a bare number has no unit"),
        ((*CANCEL, "--newer-than", "-5m", "--yes"), "--newer-than: '-5m' is not a time span"),
        ((*CANCEL, "--metadata", "ticket", "--yes"), "metadata must be KEY=VALUE"),
        (
            (*CANCEL, "--agent", "slow", "--component", "slow", "--yes"),
            "--agent, --team and --workflow exclude --type and --component",
        ),
        (
            (*CANCEL, "--agent", "slow", "--team", "duo", "--yes"),
            "--agent, --team and --workflow cannot be used together",
        ),
        (CANCEL, "confirmation required, but"),
    ],
)
def test_wrong_options_are_rejected(
    agentctl: Agentctl, demo: Demo, args: tuple[str, ...], part: str
) -> None:
    ended = agentctl(*args, "--config", str(demo.config))
    assert (ended.code, ended.stdout) == (2, "")
    assert part in ended.stderr


def test_cancel_all_asks_at_a_terminal(
    terminal: Terminal, agentctl: Agentctl, demo: Demo, session: str, three: set[str]
) -> None:
    command = (*CANCEL, "--session", session, "--config", str(demo.config))
    question = f"Cancel 3 runs, locally ({demo.config})? [y/N] "
    no = terminal(*command, types="n\n")
    assert no.code == 2
    assert question in no.screen
    assert statuses(agentctl, demo, session) == ["RUNNING"] * 3
    assert terminal(*command, types="y\n").code == 0
    assert statuses(agentctl, demo, session) == ["CANCELLED"] * 3


def test_runs_that_have_not_stopped_are_exit_code_8(
    agentctl: Agentctl, demo: Demo, session: str, three: set[str]
) -> None:
    command = (*CANCEL, "--session", session, "--yes", "--wait", "0")
    ended = agentctl(*command, "--config", str(demo.config))
    outcomes = [line.split("\t")[2] for line in ended.lines[1:]]
    assert set(outcomes) <= {"requested", "stopped"}
    assert ended.code == (8 if "requested" in outcomes else 0)


def test_a_failed_cancel_does_not_stop_the_others(
    on_demo: Agentctl, session: str, three: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = min(three)

    def component_of_run(run: dict[str, str]) -> tuple[str, str]:
        return ("agent", "echo" if run["run_id"] == first else run["agent_id"])

    monkeypatch.setattr(cancel, "component_of_run", component_of_run)
    ended = on_demo(*CANCEL, "--session", session, "--yes", "-o", "name")
    assert (ended.code, set(ended.lines)) == (1, three - {first})
    assert ended.stderr.endswith("error: 1 of 3 failed\n")


@pytest.mark.parametrize(
    ("counter", "shown"),
    [
        (Counter("runs found", None, 7), "7 runs found"),
        (Counter("have stopped", 4, 0), "0 of 4 have stopped"),
        (Counter("have stopped", 4, 1), "1 of 4 have stopped"),
        (Counter("have stopped", 0, 0), "0 have stopped"),
    ],
)
def test_a_counter_describes_its_progress(counter: Counter, shown: str) -> None:
    assert str(counter) == shown
