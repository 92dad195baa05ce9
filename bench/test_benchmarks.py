"""Small runs of the benchmarks, so that their code keeps working."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from agentctl.auth.principal import local_principal
from agentctl.service.service import Service
from bench import hostile_peers, report
from bench.gains import find_gain
from bench.load import resident_megabytes, wait_until_idle
from bench.measure import (
    at_least,
    at_most,
    build_figure_row,
    build_ratio_row,
    format_text,
    measure_spread,
    run_rounds,
)
from bench.other_work import OtherWork, count_own_seconds
from bench.seeding import seed_database
from bench.work import create_work, sized_sessions
from tests.kit.deployment import Deployment


def test_a_row_has_the_ratios_of_its_rounds_and_tells_what_is_reached() -> None:
    order: list[str] = []
    acts = {
        "ours": lambda: order.append("ours") or 300.0,
        "theirs": lambda: order.append("theirs") or 100.0,
    }
    found = run_rounds(acts, 2)
    assert order == ["ours", "theirs", "theirs", "ours"]
    rate = build_ratio_row("runs", found["ours"], "theirs", found["theirs"], "/s", at_least(2))
    time = build_ratio_row("first word", [3.0, 9.0], "theirs", [2.0, 3.0], " ms", at_most(2))
    figure = build_figure_row("cancel", [17.0], " ms", at_most(250))
    assert (rate.median, rate.reached) == (3.0, True)
    assert (time.median, time.reached) == (2.25, False)
    assert figure.reached
    table = format_text([rate, time, figure])
    assert "300/s" in table
    assert "1.50 to 3.00" in table
    on_postgres = rate.with_postgres([270.0, 285.0], found["ours"], "/s")
    assert on_postgres.cells[-2:] == ["278/s", "0.93"]
    assert rate.with_postgres([270.0], [300.0], "/s", 0.81).cells[-1] == "0.81"
    by_processor = replace(rate, target=at_least(4, by_processor=True), by_processor=5.0)
    assert by_processor.cells[6:9] == ["5.00", "≥ 4 by CPU", "yes"]
    cells = [row.cells for row in (rate, time, figure)]
    document = report.format_document([report.PartResult("reads", "2026-11-23", 90, 3, cells)])
    shown = "| 6.00 ms | theirs | 2.50 ms | 2.25 (1.50 to 3.00) |  | ≤ 2: NO |  | The first word"
    assert shown in document
    assert "| `reads` | 2026-11-23 | 3 |" in document


def test_each_row_of_the_page_has_a_gain() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in report.DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    table = [row for row in rows if len(row) == len(report.TABLE_HEAD)][1:]
    assert len(table) > 60
    for work, _, against, *_, gain in table[1:]:
        assert gain == find_gain(work, against)
    with pytest.raises(LookupError, match="no sentence for: a new kind"):
        find_gain("a new kind of row", "")


def test_a_row_of_a_busy_machine_has_no_verdict() -> None:
    row = build_ratio_row("reads", [300.0, 310.0], "theirs", [100.0, 100.0], "/s", at_least(2))
    verdicts = [
        row,
        replace(row, other_work=0.45),
        replace(row, ratios=(1.0, 3.0)),
        replace(row, failure="late with 40% of a core"),
    ]
    assert [each.cells[8] for each in verdicts] == [
        "yes",
        "unclear: other work 45%",
        "unclear: spread 3.00",
        "unclear: late with 40% of a core",
    ]
    assert measure_spread([1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 90.0]) == 1


def test_ended_children_are_no_other_work() -> None:
    other_work = OtherWork()
    before = count_own_seconds()
    loop = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", loop], check=True)
    assert count_own_seconds() - before >= 0.2
    assert 0 <= other_work() <= 1


def test_a_process_is_found_at_rest_and_has_memory() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as waiting:
        wait_until_idle(waiting.pid)
        assert 0 < resident_megabytes(waiting.pid) < resident_megabytes(os.getpid())


def test_what_is_seeded_is_there(tmp_path: Path) -> None:
    work = create_work(tmp_path / "work", "http://127.0.0.1:9/v1", sized_sessions((2,)))
    seed_database(work)
    assert work.token is work.token

    async def detail() -> bytes:
        async with Service.open(Deployment(work.folder).settings) as service:
            return (await service.operations_for(local_principal("me")).sessions.get("runs-2")).raw

    found = orjson.loads(asyncio.run(detail()))
    assert [entry["role"] for entry in found["chat_history"]] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert found["total_tokens"] == 120


def test_health_is_answered_while_hostile_peers_work(tmp_path: Path) -> None:
    """A short version of the benchmark, with a lenient limit: the figures were 8 to 50 seconds."""
    names = ["none", "endpoint: details-with-text", "agent: many_outputs"]
    waits = dict(hostile_peers.measure_all(tmp_path, names))
    assert set(waits) == set(names)
    assert max(wait.busy for times in waits.values() for wait in times) < 4
