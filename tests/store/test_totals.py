"""Remembered totals: they equal the counted ones after any sequence of changes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from typing import Any

import pytest

from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.runs import LastRunState, RunRow
from agentctl.records.sessions import SummaryRow
from agentctl.store.compared import MAXIMUM_READ
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.listing import MAXIMUM_SURPLUS, MAXIMUM_TOTAL, Slice
from agentctl.store.repositories import memories, sessions
from agentctl.store.totals import MAXIMUM_LISTS, ListTotals
from agentctl.store.visibility import EVERYONE, Visibility
from tests.kit.rows import START, a_session
from tests.store.conftest import Store
from tests.store.lists import answer_list, list_runs, list_sessions, statements_of

ANN = Visibility(False, "ann")

LISTS: tuple[Callable[[ListTotals | None], Work[Any]], ...] = (
    lambda totals: list_sessions(EVERYONE, totals, limit=1),
    lambda totals: list_sessions(EVERYONE, totals, type="agent", limit=1),
    lambda totals: list_sessions(ANN, totals, component_id="echo", limit=1),
    lambda totals: list_sessions(EVERYONE, totals, session_name="Same", limit=1),
    lambda totals: list_sessions(EVERYONE, totals, session_name="Same", sort="updated_at", limit=1),
    lambda totals: list_runs(EVERYONE, totals, limit=1),
    lambda totals: list_runs(ANN, totals, status="COMPLETED", limit=1),
)

STEPS = 60 if os.environ.get("AGENTCTL_TEST_LONG") else 6

MANY = MAXIMUM_TOTAL + 700
"""So many that some removals leave a total capped and more do not."""

_NUMBERS = (
    "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {many})"
)

_SESSIONS = f"""
INSERT INTO sessions (session_id, session_type, component_id, user_id, session_name, total_tokens,
                      run_count, history_bytes, created_at, updated_at, metrics)
{_NUMBERS.format(many=MANY)}
SELECT 's' || n, 'agent', 'echo', 'ann', 'Same ' || n, 0, CASE WHEN n <= 20 THEN 535 ELSE 0 END, 0,
       {START} + n, {START} + n, '{{}}' FROM numbers
"""

_RUNS = f"""
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, user_id, status,
                  background, attempt, created_at, late_result, input)
{_NUMBERS.format(many=20 * 535)}
SELECT 'r' || n, 's' || ((n - 1) / 535 + 1), (n - 1) % 535 + 1, 'agent', 'echo', 'ann', 'COMPLETED',
       0, 1, {START} + n, 0, 'hello' FROM numbers
"""


@unit
def _filled() -> Steps[None]:
    yield Statement(Sql(_SESSIONS))
    yield Statement(Sql(_RUNS))


@unit
def _changed(chance: random.Random, left: list[str], number: int) -> Steps[None]:
    """Delete some sessions, rename some, and create some."""
    for _ in range(chance.choice((1, 60, 200))):
        yield from sessions.delete(left.pop(chance.randrange(len(left))))
    for session_id in chance.sample(left, chance.choice((0, 250))):
        yield from sessions.update(session_id, EVERYONE, {"session_name": "Other"}, START)
    for more in range(chance.choice((0, 30))):
        row = a_session(f"more-{number}-{more}", component_id="echo", session_name="Same again")
        yield from sessions.create(row)


def test_a_remembered_total_equals_the_counted_total(store: Store) -> None:
    database = store.database
    chance = random.Random(5)
    left = [f"s{number}" for number in range(1, MANY + 1)]
    totals = ListTotals()

    async def compare() -> set[bool]:
        capped = set()
        await database.write(_filled())
        for number in range(STEPS):
            for query in LISTS:
                remembered = await database.read(query(totals))
                assert remembered == await database.read(query(None))
                capped.add(remembered.capped)
            await database.write(_changed(chance, left, number))
        return capped

    assert store.run(compare()) == {True, False}


A_ROW = (*astuple(a_session("s1"))[: len(fields(SummaryRow))], *[None] * len(fields(LastRunState)))


def is_counted(work: Work[Any], removed: int, found: int, row: Sequence[Any] = A_ROW) -> bool:
    """Return True if a list of `found` rows is counted."""
    return any("count(*)" in sql for sql, _ in statements_of(work, found, removed, row))


def test_a_list_is_one_statement_until_its_remembered_total_is_outdated() -> None:
    totals = ListTotals()
    long = MAXIMUM_TOTAL + MAXIMUM_SURPLUS
    for removed, statements in ((7, 1), (7, 1), (7 + MAXIMUM_SURPLUS, 3), (7 + MAXIMUM_SURPLUS, 1)):
        work = LISTS[0](totals)
        assert work.single
        assert len(statements_of(work, long, removed, A_ROW)) == statements


def test_an_empty_page_is_counted_unless_it_is_the_first() -> None:
    for part, statements in (({}, 1), ({"offset": 20}, 2), ({"after": (5, "x")}, 2)):
        assert len(statements_of(list_sessions(**part), 5)) == statements


def test_a_long_list_is_counted_again_after_as_many_removals_as_its_surplus() -> None:
    totals = ListTotals()
    long = MAXIMUM_TOTAL + MAXIMUM_SURPLUS
    for removed, counted in (
        (7, True),
        (7, False),
        (6 + MAXIMUM_SURPLUS, False),
        (7 + MAXIMUM_SURPLUS, True),
    ):
        assert is_counted(LISTS[0](totals), removed, long) is counted
    # A different list is counted, and so is a database that was restored from an older state.
    assert is_counted(LISTS[1](totals), 7 + MAXIMUM_SURPLUS, long)
    assert is_counted(LISTS[0](totals), 7, long)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, which a test changes."""
    at = [100.0]
    monkeypatch.setattr("agentctl.store.totals.time.monotonic", lambda: at[0])
    return at


def test_capped_total_of_compared_rows_is_counted_again_after_a_removal_or_some_seconds(
    clock: list[float],
) -> None:
    totals = ListTotals()
    for removed, at, counted in (
        (7, 100.0, True),
        (7, 109.9, False),
        (8, 109.9, True),
        (8, 119.8, False),
        (8, 119.9, True),
    ):
        clock[0] = at
        # A page that is full, with more rows behind those that are compared.
        statements, _ = answer_list(LISTS[1](totals), 30, removed, A_ROW, A_ROW)
        assert any("count(*)" in sql for sql, _ in statements) is counted, at


def test_exact_total_of_compared_rows_is_not_remembered() -> None:
    totals = ListTotals()
    for _ in range(2):
        assert is_counted(LISTS[1](totals), 7, 0)


def test_page_of_a_compared_list_is_one_statement_if_it_is_full() -> None:
    totals = ListTotals()
    full = (A_ROW, A_ROW)
    for _ in range(2):
        work = LISTS[1](totals)
        assert work.single
        statements, page = answer_list(work, 30, 7, *full)
        assert len(statements) == 1
        assert (page.total, page.capped) == (30, True)


def test_page_of_completed_runs_is_read_without_the_rows_of_its_total() -> None:
    totals = ListTotals()
    a_run_row = [None] * len(fields(RunRow))
    for is_known in (False, True):
        work = list_runs(EVERYONE, totals, status="COMPLETED", limit=1)
        assert work.single
        ((sql, values),), page = answer_list(work, 175, 7, a_run_row, a_run_row)
        assert (page.total, page.capped, values["searched"]) == (175, True, MAXIMUM_READ)
        assert "MATERIALIZED" not in sql
        assert sql.count("count(*)") == (0 if is_known else 2)


def test_remembered_total_is_at_least_the_rows_of_the_page() -> None:
    totals = ListTotals()
    answer_list(LISTS[1](totals), 1, 7, A_ROW)
    _, page = answer_list(
        list_sessions(EVERYONE, totals, type="agent", limit=5), 1, 7, *[A_ROW] * 4
    )
    assert (page.total, page.capped) == (4, True)


def test_long_list_without_counted_removals_is_counted_again_after_some_seconds(
    clock: list[float],
) -> None:
    totals = ListTotals()
    memory = astuple(memories.build_memory("ann", "tea", (), now=START))
    for at, counted in ((100.0, True), (109.9, False), (110.0, True)):
        clock[0] = at
        work = memories.list_page(MemoryFilter(), EVERYONE, Slice(limit=1), totals)
        assert is_counted(work, 0, MAXIMUM_TOTAL + 1, memory) is counted, at


def test_page_beyond_the_end_of_a_long_list_has_its_remembered_total() -> None:
    totals = ListTotals()
    statements_of(LISTS[0](totals), MAXIMUM_TOTAL + 1, 7, A_ROW)
    statements, page = answer_list(list_sessions(EVERYONE, totals, offset=20), 0, 7)
    assert not any("count(*)" in sql for sql, _ in statements)
    assert (page.total, page.capped) == (MAXIMUM_TOTAL, True)


def test_list_of_the_largest_total_is_not_remembered() -> None:
    """Such a list may be shorter after each removal: it is counted with its page."""
    totals = ListTotals()
    for beyond in (False, True):
        list_part = list_sessions(EVERYONE, totals, offset=20 if beyond else 0)
        statements_of(list_part, MAXIMUM_TOTAL, row=() if beyond else A_ROW)
        assert len(statements_of(LISTS[0](totals), MAXIMUM_TOTAL, row=A_ROW)) == 1


def test_a_list_of_live_runs_is_always_counted() -> None:
    totals = ListTotals()
    for filters in ({"live": True}, {"status": "RUNNING"}):
        for _ in range(2):
            work = list_runs(EVERYONE, totals, **filters)
            assert is_counted(work, 0, MAXIMUM_TOTAL + MAXIMUM_SURPLUS, row=())


def test_the_number_of_remembered_lists_is_limited() -> None:
    totals = ListTotals()
    for number in range(MAXIMUM_LISTS):
        totals.learn(number, 5)
    assert totals.find(0) == 5
    totals.learn("one more", 5)
    assert totals.find(0) == 5
    assert totals.find(1) is None
