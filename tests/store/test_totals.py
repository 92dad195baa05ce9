"""Totals that are remembered are those that counting finds, whatever happens in between."""

from __future__ import annotations

import os
import random
from typing import Any

from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.listing import MAXIMUM_TOTAL, SPARE, RowPage
from agentctl.store.repositories import runs, sessions
from agentctl.store.repositories.runs import RunQuery
from agentctl.store.repositories.sessions import SessionQuery
from agentctl.store.totals import REMEMBERED, Totals
from agentctl.store.visibility import EVERYONE, Visibility
from tests.store.conftest import Store
from tests.store.made import START, a_session

ANN = Visibility(False, "ann")

LISTS = (
    SessionQuery(EVERYONE, limit=1),
    SessionQuery(EVERYONE, session_type="agent", limit=1),
    SessionQuery(ANN, component_id="echo", limit=1),
    SessionQuery(EVERYONE, name_prefix="Same", limit=1),
    SessionQuery(EVERYONE, name_prefix="Same", sort_by="updated_at", limit=1),
    RunQuery(EVERYONE, limit=1),
    RunQuery(ANN, status="COMPLETED", limit=1),
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


def _page(query: SessionQuery | RunQuery, known: Totals | None) -> Work[RowPage[Any]]:
    if isinstance(query, SessionQuery):
        return sessions.list_page(query, known)
    return runs.list_page(query, known)


@unit
def _changed(chance: random.Random, left: list[str], number: int) -> Steps[None]:
    """Some sessions fewer, some of another name, some more."""
    for _ in range(chance.choice((1, 60, 200))):
        yield from sessions.delete(left.pop(chance.randrange(len(left))))
    for session_id in chance.sample(left, chance.choice((0, 250))):
        yield from sessions.update(session_id, EVERYONE, {"session_name": "Other"}, START)
    for more in range(chance.choice((0, 30))):
        row = a_session(f"more-{number}-{more}", component_id="echo", session_name="Same again")
        yield from sessions.create(row)


def test_a_remembered_total_is_what_counting_finds(store: Store) -> None:
    database = store.database
    chance = random.Random(5)
    left = [f"s{number}" for number in range(1, MANY + 1)]
    known = Totals()

    async def hold() -> set[bool]:
        capped = set()
        await database.write(_filled())
        for number in range(STEPS):
            for query in LISTS:
                remembered = await database.read(_page(query, known))
                assert remembered == await database.read(_page(query, None))
                capped.add(remembered.capped)
            await database.write(_changed(chance, left, number))
        return capped

    assert store.run(hold()) == {True, False}


def _asked(work: Work[Any], removed: int, found: int) -> list[str]:
    """What a list asks of a database that has so many rows."""
    asked: list[str] = []
    steps, rows = iter(work), None
    try:
        while True:
            statement: Statement = steps.send(rows)  # type: ignore[arg-type]
            asked.append(statement.sql)
            counts = {"removals": [(removed,)], "count(*)": [(found,)]}
            rows = next((rows for part, rows in counts.items() if part in statement.sql), [])
    except StopIteration:
        return asked


def test_a_long_list_is_counted_once_until_as_many_rows_are_gone_as_it_had_to_spare() -> None:
    known = Totals()
    long = MAXIMUM_TOTAL + SPARE
    for removed, counted in ((7, True), (7, False), (6 + SPARE, False), (7 + SPARE, True)):
        asked = _asked(sessions.list_page(LISTS[0], known), removed, long)
        assert any("count(*)" in sql for sql in asked) is counted
    # Another list is another matter, and so is a database that was set back to before that.
    assert len(_asked(sessions.list_page(LISTS[1], known), 7 + SPARE, long)) == 3
    assert len(_asked(sessions.list_page(LISTS[0], known), 7, long)) == 3


def test_a_list_of_live_runs_is_always_counted() -> None:
    known = Totals()
    for query in (RunQuery(EVERYONE, live=True), RunQuery(EVERYONE, status="RUNNING")):
        for _ in range(2):
            asked = _asked(runs.list_page(query, known), 0, MAXIMUM_TOTAL + SPARE)
            assert any("count(*)" in sql for sql in asked)


def test_no_more_than_some_lists_are_remembered() -> None:
    known = Totals()
    for number in range(REMEMBERED):
        known.learn(number, 0, 1)
    assert known.is_beyond(0, 0)
    known.learn("one more", 0, 1)
    assert known.is_beyond(0, 0)
    assert not known.is_beyond(1, 0)
