"""No call begins after the return of a halt, and what it has held continues once."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.lab.halts.counting_endpoint import Call
from tests.lab.halts.experiment import Plan, halt_often
from tests.lab.halts.paths import PATHS
from tests.lab.halts.report import (
    CONTINUED,
    REPEATED,
    PastHalt,
    Report,
    find_broken_halt,
    judge_runs,
)
from tests.lab.halts.timed_connection import TimedConnection, open_listener


@pytest.mark.parametrize(("deployment", "on_halt"), [("postgresql", "refuse"), ("sqlite", "hold")])
async def test_no_call_begins_after_a_halt(deployment: str, on_halt: str) -> None:
    """Two servers, or three workers of one file, while processes are killed and stopped."""
    plan = Plan(100, kill_every=50, stop_every=20, long_stop_every=50)
    report = await halt_often(deployment, plan, on_halt=on_halt)
    assert report.late == [], report.describe()
    assert not report.problems, report.describe()
    assert report.held.keys() >= {CONTINUED}, report.describe()
    for path in PATHS:
        assert report.paths[path].halts > 0, report.describe()


async def test_no_call_begins_after_a_few_halts() -> None:
    report = await halt_often("two workers on sqlite", Plan(10))
    assert report.late == [], report.describe()
    assert not report.problems, report.describe()
    assert sum(figures.calls for figures in report.paths.values()) > 0


def test_calls_are_judged_by_the_halt_before_them() -> None:
    everything = PastHalt("all", 1.0, 2.0)
    tools = PastHalt("tool", 3.0, 4.0)
    cases = {
        (0.9, "model"): None,
        (1.0, "model"): None,
        (1.1, "model"): everything,
        (1.1, "tool"): everything,
        (2.1, "tool"): None,
        (3.1, "model"): None,
        (3.1, "tool"): tools,
        (4.1, "tool"): None,
    }
    for (at, kind), expected in cases.items():
        found = find_broken_halt([everything, tools], Call(at, kind, "start", 1))
        assert found == expected, (at, kind)


async def test_time_of_a_request_is_when_it_was_sent() -> None:
    async def is_time_of_sending() -> bool:
        before = time.monotonic()
        client.sendall(b"POST /v1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
        after = time.monotonic()
        time.sleep(0.01)
        request = await connection.read_request()
        assert request is not None
        assert (request.method, request.target, request.body) == ("POST", "/v1", b"body")
        latest = after if sys.platform == "linux" else time.monotonic()
        return before - 0.001 < request.arrived_at < latest + 0.001

    with open_listener() as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            connection = TimedConnection(accepted)
            # Linux begins to note times a moment after the first socket has asked for them: a
            # request that is sent before has the time of its reading.
            await wait_until(is_time_of_sending)


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
