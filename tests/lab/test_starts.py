"""Starts while the database is stopped, slow, small or locked: each answer is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kit.postgres_server import PostgresServer, run_postgres_server
from tests.lab.starts import CASES, SLOW_COMMITS, Answers, open_case, send_starts, try_cases

RATE = 20.0
SECONDS = 3.0
CALM = 0.5

SMALL = [name for name, case in CASES.items() if not case.loses_runs]
"""The cases with a deployment that is too small."""

STOPPED = [name for name in CASES if "crash" in name or name == "`runs` locked"]


@pytest.fixture(scope="module")
def slow_postgres() -> Iterator[PostgresServer]:
    with run_postgres_server(durable=True, settings=SLOW_COMMITS) as server:
        yield server


async def test_disturbances_lose_no_acknowledged_start_and_execute_no_refused_one() -> None:
    found = await try_cases(STOPPED, rate=RATE, seconds=SECONDS, calm=2.0)
    assert list(found) == STOPPED
    for answers in found.values():
        assert answers.select("acknowledged")
        assert answers.select("refused")
        assert not answers.judge(loses_runs=True)


@pytest.mark.parametrize("name", SMALL)
async def test_refused_starts_do_nothing_and_acknowledged_ones_run_once(
    slow_postgres: PostgresServer, name: str
) -> None:
    case = CASES[name]
    # As many starts for each case, but for the one that has no lock to wait for.
    rate = 60 / (case.seconds + 2 * CALM)
    async with open_case(case, postgres=slow_postgres) as world:
        answers = await send_starts(world, case, rate=rate, seconds=0.0, calm=CALM)
    assert not answers.judge(loses_runs=False)
    assert answers.select("refused")
    assert answers.select("acknowledged")
    if case.wait:
        assert answers.quickest < case.wait
    if case.is_unready:
        assert answers.readiness == 503


def test_untrue_answers_are_found() -> None:
    answers = Answers(
        answers={"a": "acknowledged", "b": "acknowledged", "c": "refused", "d": "refused"},
        executed=Counter({"a": 2, "d": 1}),
        stored={"a": ["COMPLETED"], "c": ["COMPLETED"]},
    )
    assert answers.judge(loses_runs=True) == {
        "acknowledged without a row: b": 1,
        "refused, but stored or executed: c": 1,
        "refused, but stored or executed: d": 1,
        "executed 2 times: a": 1,
    }
    strict = answers.judge(loses_runs=False)
    assert strict["acknowledged, but ['COMPLETED'], executed 2 times: a"] == 1
