"""No call begins after the return of a halt, and what it has held continues once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cluster import Engine
from tests.halts.counting_endpoint import Call
from tests.halts.paths import PATHS
from tests.halts.report import CONTINUED, REPEATED, Report, judge_runs
from tests.halts.world import Plan, open_world


@pytest.mark.parametrize(("engine", "on_halt"), [("postgresql", "refuse"), ("sqlite", "hold")])
async def test_no_call_begins_after_a_halt(engine: Engine, on_halt: str) -> None:
    """Two servers, or three workers of one file, while processes are killed and stopped."""
    plan = Plan(100, kill_every=50, stop_every=20, long_stop_every=50)
    async with open_world(engine, on_halt=on_halt) as world:
        report = await world.run(plan)
    assert report.late == [], report.describe()
    assert not report.problems, report.describe()
    assert report.held.keys() >= {CONTINUED}, report.describe()
    for path in PATHS:
        assert report.paths[path].halts > 0, report.describe()


async def test_no_call_begins_after_a_few_halts() -> None:
    async with open_world("sqlite") as world:
        report = await world.run(Plan(10))
    assert report.late == [], report.describe()
    assert not report.problems, report.describe()
    assert sum(figures.calls for figures in report.paths.values()) > 0


def test_figures_of_a_file_are_added(tmp_path: Path) -> None:
    report = Report(not_created=1, elapsed=2.0, seconds=[0.1], late=["start: late"])
    report.halts["all"] = 3
    report.paths["start"].halts = 2
    report.append_to(tmp_path / "figures")
    report.append_to(tmp_path / "figures")
    total = Report.read_sum(tmp_path / "figures")
    assert (total.not_created, total.elapsed, total.seconds) == (2, 4.0, [0.1, 0.1])
    assert total.late == ["start: late", "start: late"]
    assert total.halts == {"all": 6}
    assert [path for path, figures in total.paths.items() if figures.halts] == ["start"]
    assert total.paths["start"].halts == 4


def test_runs_are_judged_by_their_calls() -> None:
    rows = [
        ("once", "work-start-6", "COMPLETED", None, 1),
        ("twice", "work-start-12", "COMPLETED", None, 1),
        ("cut", "work-start-18", "COMPLETED", None, 1),
        ("lost", "work-start-24", "ERROR", "WORKER_LOST", 1),
        ("told", "work-start-30", "COMPLETED", None, 1),
    ]
    model_calls = {6: 2, 12: 3, 18: 1, 24: 1, 30: 2}
    tool_calls = {6: 1, 12: 1, 18: 1, 24: 0, 30: 0}
    calls = [
        Call(0.0, kind, "start", number, is_told=number == 30 and kind == "model" and turn == 1)
        for kind, counts in (("model", model_calls), ("tool", tool_calls))
        for number, count in counts.items()
        for turn in range(count)
    ]
    report = Report()
    judge_runs(report, rows, calls, {"once", "twice", "lost", "told"})
    assert report.held == {CONTINUED: 2, REPEATED: 1, "ended as WORKER_LOST": 1}
    problems = sorted(problem.partition(" with ")[2] for problem in report.problems)
    assert problems == [
        "1 calls of the model instead of 2 and 1 of the tool instead of 1",
        "3 calls of the model instead of 2 and 1 of the tool instead of 1",
    ]
