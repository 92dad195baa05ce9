"""Query plans: the index that serves each statement."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentctl.store.database import (
    Sql,
    Statement,
    Steps,
    Value,
    Work,
    compile_for_postgres,
    compile_for_sqlite,
    unit,
)
from agentctl.store.repositories import queue, sessions
from agentctl.store.sqlite.connection import connect_reader
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import EVERYONE
from tests.generated.fill import fill_database
from tests.generated.population import Population
from tests.kit.postgres import PostgresUnderTest
from tests.store.lists import ListCase, list_cases, list_runs, statements_of
from tests.store.other_pages import build_reads
from tests.store.statements import module_statements


def plan(sqlite: SqliteDatabase, sql: Sql, values: Mapping[str, Value] | None = None) -> list[str]:
    if values is None:
        values = {name: 1 if name == "limit" else "x" for name in re.findall(r":(\w+)", sql)}

    @unit
    def explain() -> Steps[list[str]]:
        rows = yield Statement(Sql(f"EXPLAIN QUERY PLAN {sql}"), values)
        return [row[3] for row in rows]

    return sqlite.read_blocking(explain())


def expected_index(case: ListCase) -> set[str]:
    """Return the indexes that may serve a page: the most selective filter, then the order."""
    owned = not case.visibility.everyone or "user_id" in case.filters
    if case.table == "runs":
        in_session = {"runs_live_session", "runs_session_created"}
        if case.filters.get("live") or case.filters.get("status") == "RUNNING":
            return {"runs_live"} | (in_session if "session_id" in case.filters else set())
        if case.filters.get("at_work"):
            return {"runs_at_work"} | (in_session if "session_id" in case.filters else set())
        if "finished_after" in case.filters:
            return {"runs_by_finished"}
        if "session_id" in case.filters:
            return {"runs_session_created"}
        if owned:
            return {"runs_user_created"}
        return {"runs_by_component" if "component_id" in case.filters else "runs_by_created"}
    name = case.filters.get("session_name")
    sort = case.part["sort"].removesuffix("_at")
    if name and not case.many:
        return {"sessions_by_user_name" if owned else "sessions_by_name"}
    if owned:
        return {"sessions_by_user" if sort == "created" else "sessions_user_updated"}
    if "component_id" in case.filters and (sort == "created" or not case.many):
        return {"sessions_component_created"}
    return {f"sessions_by_{sort}"}


def plan_list(
    sqlite: SqliteDatabase, statements: Iterable[Statement]
) -> tuple[list[str], list[str]]:
    """Return the steps that count a list, and those that find the rows of its page."""
    counted = list[str]()
    page = list[str]()
    for sql, values in statements:
        # The newest runs are looked up for the rows of a page, and the removals for a list.
        others = ("page", "newest", "turns", "removals", "searched")
        steps = plan(sqlite, sql, values)
        if "SCAN found" in steps:  # the ids of rows, each of which is then read
            joined = steps.index("SCAN found")
            del steps[joined : joined + 2], steps[steps.index("CO-ROUTINE found")]
        if "MATERIALIZE searched" in steps:  # the rows from which the page is also read
            first = steps.index("MATERIALIZE searched")
            last = steps.index("SCAN searched")
            counted = steps[first + 1 : last]
            steps = steps[:first] + counted + steps[last + 1 :]
        if "CO-ROUTINE rest" in steps:  # the row after the compared ones, and these again
            del steps[steps.index("CO-ROUTINE rest") : steps.index("SCAN rest") + 1]
            first = _find_last(steps, "CO-ROUTINE searched")
            last = _find_last(steps, "SCAN searched")
            counted = steps[first + 1 : last]
            del steps[first : last + 1]
        steps = [step for step in steps if step.split()[1] not in others]
        if "CO-ROUTINE counted" in steps:
            first = steps.index("CO-ROUTINE counted")
            last = steps.index("SCAN counted")
            counted = steps[first + 1 : last]
            steps = steps[:first] + steps[last + 1 :]
        page += steps
    return counted, page


def _find_last(steps: list[str], step: str) -> int:
    return max(number for number, found in enumerate(steps) if found == step)


def plan_first_count(sqlite: SqliteDatabase, case: ListCase) -> list[str]:
    """Return the steps of the first count of a list, or of one of its filters."""
    counting = (each for each in case.statements() if "count(*)" in each.sql)
    counted, searched = plan_list(sqlite, [next(counting)])
    return counted or searched


def indexes(steps: list[str]) -> list[str]:
    """Return the indexes of a plan that searches or scans nothing else."""
    reads = [step for step in steps if step.startswith(("SEARCH", "SCAN"))]
    assert all(" INDEX " in step for step in reads), steps
    return [step.split("INDEX ")[1].split()[0] for step in reads]


SAMPLE_STEP = 11
"""One of so many lists is planned for each change. No filter or order has a multiple of this number
of values, so that the sample has each pair of values."""


def test_each_page_uses_the_most_selective_index(sqlite: SqliteDatabase) -> None:
    for case in islice(list_cases(), 0, None, SAMPLE_STEP):
        check_page(sqlite, case)


def test_every_list_uses_the_most_selective_index(sqlite: SqliteDatabase) -> None:
    for case in list_cases():
        check_page(sqlite, case)
        check_count(sqlite, case)


def check_page(sqlite: SqliteDatabase, case: ListCase) -> None:
    """Check that a page reads the expected index, and sorts only what has another order."""
    if case.filters.get("session_name") == UNBOUNDED_PREFIX:
        return
    for statement in case.statements():
        _, steps = plan_list(sqlite, [statement])
        if not steps:  # it counts a range
            continue
        *by_id, index = indexes(steps)
        assert index in expected_index(case), (case, steps)
        # Only the lists that sort ids read an index that is not in the order of the list.
        sorts = [step for step in steps if "TEMP B-TREE" in step]
        assert len(by_id) == bool(sorts), (case, steps)
        if ":limit" in statement.sql:
            is_updated = case.part.get("sort") == "updated_at"
            of_component = is_updated and index == "sessions_component_created"
            assert sorts or not (index in SORTED or of_component), (case, steps)


def test_a_statement_is_prepared_once(sqlite: SqliteDatabase) -> None:
    prepared: list[int] = []
    with closing(connect_reader(sqlite.path)) as reader:

        def authorize(operation: int, *_: str | None) -> int:
            prepared.append(operation)
            return apsw.SQLITE_OK

        reader.authorizer = authorize
        for case in islice(list_cases(), 0, None, 101):
            for sql, values in case.statements():
                reader.execute(compile_for_sqlite(sql), values).fetchall()
                prepared.clear()
                reader.execute(compile_for_sqlite(sql), values).fetchall()
                assert not prepared, sql


UNBOUNDED_PREFIX = chr(0x10FFFF)
"""A prefix without a greater text, so that its range has one bound. Any plan for it is good."""

SORTED = (
    "sessions_by_name", "sessions_by_user_name", "runs_live", "runs_live_session", "runs_at_work",
    "runs_by_finished",
)  # fmt: skip


def test_each_count_searches_an_index(sqlite: SqliteDatabase) -> None:
    for case in islice(list_cases(), 0, None, SAMPLE_STEP):
        check_count(sqlite, case)


def check_count(sqlite: SqliteDatabase, case: ListCase) -> None:
    """Check that the first count of a list searches one index."""
    steps = plan_first_count(sqlite, case)
    (index,) = indexes(steps)
    if case.table == "sessions" and "session_name" in case.filters:
        assert index in ("sessions_by_name", "sessions_by_user_name"), (case, steps)
    if case.filters.get("live") and "session_id" not in case.filters:
        assert index == "runs_live", (case, steps)


COUNTED_WITHOUT_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("sessions", {}),
    *(("sessions", {name: "x"}) for name in ("type", "component_id", "user_id", "session_name")),
    ("sessions", {"user_id": "x", "type": "x"}),
    ("sessions", {"user_id": "x", "component_id": "x"}),
    ("sessions", {"user_id": "x", "type": "x", "component_id": "x"}),
    ("runs", {}),
    *(("runs", {name: "x"}) for name in ("session_id", "user_id", "component_id")),
    ("runs", {"component_type": "x"}),
    ("runs", {"user_id": "x", "status": "x", "component_type": "x", "component_id": "x"}),
    ("runs", {"component_id": "x", "component_type": "x"}),
    ("runs", {"live": True}),
    ("runs", {"at_work": True}),
    ("runs", {"finished_after": 10}),
    ("runs", {"created_after": 1, "created_before": 2}),
    ("runs", {"user_id": "x", "created_after": 1, "created_before": 2}),
]


def test_common_lists_are_counted_without_reading_rows(sqlite: SqliteDatabase) -> None:
    found = 0
    for case in list_cases():
        if case.filters.get("status") == "RUNNING":
            continue
        owner = {} if case.visibility.everyone else {"user_id": "x"}
        if (case.table, {**case.filters, **owner}) in [
            (table, {name: case.filters.get(name, value) for name, value in filters.items()})
            for table, filters in COUNTED_WITHOUT_ROWS
        ]:
            found += 1
            steps = plan_first_count(sqlite, case)
            assert any("COVERING INDEX" in step for step in steps), (case, steps)
            assert not any("TEMP B-TREE" in step for step in steps), (case, steps)
    assert found >= len(COUNTED_WITHOUT_ROWS)


def test_runs_with_an_error_code_are_sought_among_the_failed_ones(sqlite: SqliteDatabase) -> None:
    failed = list_runs(error_code="x", finished_before=20)
    _, steps = plan_list(sqlite, statements_of(failed, 1))
    assert set(indexes(steps)) == {"runs_by_status", "sqlite_autoindex_runs_1"}


def test_runs_behind_a_point_of_an_overview_are_sought_by_their_end(sqlite: SqliteDatabase) -> None:
    behind = list_runs(finished_after=10, finished_before=20, parent="none", model="x")
    _, steps = plan_list(sqlite, statements_of(behind, 1))
    assert "runs_by_finished (finished_at>? AND finished_at<?)" in "".join(steps)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("column", ["", "session_id", "user_id", "component_id"])
def test_a_time_bound_limits_the_index_range(
    sqlite: SqliteDatabase, column: str, order: str
) -> None:
    """A page starts at the tighter of a time bound and a cursor."""
    filters: dict[str, Any] = {column: "x"} if column else {}
    filters |= {"created_after": 10, "created_before": 20}
    for key, bounds in ((None, "created_at>? AND created_at<?"), (15, _CURSOR[order])):
        after = None if key is None else (key, "r")
        statements = statements_of(list_runs(**filters, order=order, after=after), 1)
        counted, page = plan_list(sqlite, statements[:1])
        assert bounds in "".join(page)
        assert "created_at>? AND created_at<?" in "".join(counted)
    beyond = {"asc": 5, "desc": 25}[order]
    after = (beyond, "r")
    _, page = plan_list(sqlite, statements_of(list_runs(**filters, order=order, after=after), 1))
    assert "created_at>? AND created_at<?" in "".join(page)


_CURSOR = {
    "asc": "(created_at,run_id)>(?,?) AND created_at<?",
    "desc": "created_at>? AND (created_at,run_id)<(?,?)",
}


SMALL = {
    "idempotency": "created_at <",
    "webhooks": "FROM disabled_webhooks",
    "workers": "SELECT",
    "accounts": "WHERE name =",
    "usage": "usage_ends",
    "usage_reads": "usage_ends",
    "audit": "FROM audit_log ORDER BY seq LIMIT",
}
"""Tables of a day, of some seconds or processes, or of a team, whose rows are all read, and rarely;
and the oldest rows of the audit log, a bounded number in the order of the table itself."""


def test_every_other_statement_searches_an_index(sqlite: SqliteDatabase) -> None:
    for sql, module in module_statements().items():
        if module in ("database", "integrity") or SMALL.get(module, sql + "?") in sql:
            continue
        if "set_config(" in sql:  # a setting of PostgreSQL
            continue
        steps = plan(sqlite, sql)
        # Rows of constants and of other steps are not tables.
        own = {re.sub("CO-ROUTINE|MATERIALIZE", "SCAN", step) for step in steps}
        scans = [step for step in steps if step.startswith("SCAN") and "CONSTANT" not in step]
        scans = [step for step in scans if step not in own]
        assert not [step for step in scans if "COVERING INDEX" not in step], (sql, steps)
        # The runs without an owner are few, so are the repeats of a run, and the history of a
        # session is up to 64 KB then. The steps of a run are sorted only after the death of its
        # process, when all of them are read anyway; an index would cost each step.
        sorted_anyway = (
            "owner",
            "string_agg",
            "origin_run_id = :run_id",
            "DISTINCT session_id",
            "FROM run_steps WHERE run_id = :run_id AND state IN",
            "coalesce(root_attempt",
            # A few halts are in force.
            "FROM halts WHERE ended_at IS NULL",
            "halts.ended_at IS NULL",
        )
        if all(text not in sql for text in sorted_anyway):
            assert not [step for step in steps if "TEMP B-TREE" in step], (sql, steps)


READ_WHOLE = ("SCAN halts", "SCAN service_accounts")
"""Tables of which an operator creates some hundreds of rows."""


def test_no_page_of_another_list_scans_a_table(path: Path) -> None:
    asyncio.run(fill_database(f"sqlite:///{path}", Population(200, 3), related=True))
    scans = list[str]()
    with closing(connect_reader(path)) as reader:
        for read in build_reads(is_sqlite=True, every=False):
            if read.group in LISTS:
                scans += [f"{read}: {step}" for step in _explain(reader, read.build())]
    scans = [scan for scan in scans if not scan.endswith(READ_WHOLE)]
    assert not scans, "\n".join(scans)


LISTS = ("approvals", "audit", "files", "halts", "accounts", "memories", "usage", "overview")


def _explain(reader: apsw.Connection, work: Work[Any]) -> list[str]:
    """Execute a unit; return the steps of its plans that read a table without an index."""
    steps = iter(work)
    scans = list[str]()
    rows: list[tuple[Any, ...]] | None = None
    try:
        while True:
            statement = steps.send(rows)  # type: ignore[arg-type]
            sql = compile_for_sqlite(statement.sql)
            plan_rows = reader.execute(f"EXPLAIN QUERY PLAN {sql}", statement.parameters)
            details = [row[3] for row in plan_rows]
            # Rows of other steps are not tables.
            own = {re.sub("CO-ROUTINE|MATERIALIZE", "SCAN", detail) for detail in details}
            scans += [
                detail
                for detail in details
                if detail.startswith("SCAN")
                and " INDEX " not in detail
                and "CONSTANT" not in detail
                and detail not in own
            ]
            rows = reader.execute(sql, statement.parameters).fetchall()
    except StopIteration:
        return scans


def test_the_queue_is_read_with_its_indexes(sqlite: SqliteDatabase) -> None:
    assert plan(sqlite, queue._NEXT_LEGS) == ["SEARCH runs USING INDEX runs_next_legs (<expr>>?)"]
    for sql in (queue._COUNT, queue._OVERDUE, queue._STALLED):
        assert "INDEX runs_queued (queued_at" in "".join(plan(sqlite, sql)), sql
    for sql in (queue._HEAD, queue._COUNT_IN_SESSION, queue._POSITIONS):
        assert "INDEX runs_live_session (session_id=?" in "".join(plan(sqlite, sql)), sql


@pytest.mark.parametrize("name", ["principal", "operation", "outcome"])
def test_the_audit_log_is_read_with_the_index_of_a_filter(
    sqlite: SqliteDatabase, name: str
) -> None:
    found = [
        sql
        for sql, module in module_statements().items()
        if module == "audit" and f"AND {name} = :" in sql
    ]
    assert len(found) == 1
    for sql in found:
        (step,) = plan(sqlite, sql)
        wanted = f"INDEX audit_log_{name} ({name}=? AND seq>? AND seq<?)"
        assert wanted in step or wanted.replace("seq", "rowid") in step


def test_live_runs_are_found_without_reading_the_others(sqlite: SqliteDatabase) -> None:
    found = {
        sql: next(step for step in plan(sqlite, sql) if step.startswith(("SEARCH", "SCAN")))
        for sql, module in module_statements().items()
        if module == "run_reads" and "status IN" in sql
    }
    assert len(found) == 10
    for sql, step in found.items():
        assert " INDEX runs_live" in step, (sql, step)


def test_events_of_younger_runs_are_not_read_to_find_old_ones(sqlite: SqliteDatabase) -> None:
    older = [
        sql
        for sql, module in module_statements().items()
        if module == "events" and ":made_before" in sql
    ]
    assert len(older) == 2
    for sql in older:
        steps = plan(sqlite, sql)
        at = steps.index("SEARCH runs USING INDEX sqlite_autoindex_runs_1 (run_id=?)")
        assert "SEARCH run_events USING COVERING INDEX" in steps[at - 1]
        assert "(run_id<?)" in steps[at - 1]


MANY_RUNS = """
INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,
                      history_bytes, created_at, updated_at, metrics)
SELECT 's-' || n, 'agent', '', 0, 0, 0, n, n, '{}' FROM generate_series(0, 99) n;
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, user_id, status,
                  background, attempt, owner, created_at, late_result, input)
SELECT 'r-' || n, 's-' || n % 100, n, 'agent', 'echo', 'u-' || n % 7,
       CASE WHEN n % 1000 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END, 0, 1, 'w1', n, 0, 'hello'
FROM generate_series(1, 20000) n;
ANALYZE runs
"""
"""Enough rows for the planner of PostgreSQL to compare the costs of indexes."""

BOUNDS = {"created_after": 8000, "created_before": 10_000}


async def explain_with_many_runs(
    postgres: PostgresUnderTest, statements: Iterable[tuple[Sql, Mapping[str, Value]]]
) -> list[str]:
    """Return the plans of some statements in a database with `MANY_RUNS`."""
    plans = []
    async with postgres.connected() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(MANY_RUNS)
        for sql, parameters in statements:
            text, names = compile_for_postgres(sql)
            values = [parameters[name] for name in names]
            rows = await connection.fetch(f"EXPLAIN {text}", *values)
            plans.append("\n".join(row[0] for row in rows))
        await transaction.rollback()
    return plans


LIVE_RUNS: tuple[dict[str, Any], ...] = (
    {"live": True},
    {"live": True, "user_id": "u-1"},
    {"live": True} | BOUNDS,
)

RUNS_OF_A_TIME: tuple[dict[str, Any], ...] = (BOUNDS, {"user_id": "u-1"} | BOUNDS)


@pytest.mark.parametrize(
    ("filters", "step"),
    [
        (LIVE_RUNS, r"(using|on) runs_live\w* "),
        (RUNS_OF_A_TIME, r"Index Cond: .*created_at (>= '8000|< '10000)'"),
    ],
    ids=["live", "time"],
)
def test_postgres_finds_live_runs_and_runs_of_a_time_with_an_index(
    postgres: PostgresUnderTest, filters: tuple[dict[str, Any], ...], step: str
) -> None:
    statements = [
        statement
        for each in filters
        for after in (None, (9000, "r-9000"))
        for statement in statements_of(list_runs(**each, after=after), 1)
    ]
    plans = asyncio.run(explain_with_many_runs(postgres, statements))
    for (sql, _), plan in zip(statements, plans, strict=True):
        assert "Seq Scan" not in plan, (sql, plan)
        assert re.search(step, plan), (sql, plan)


def test_postgres_plans_the_read_of_a_short_session_once(postgres: PostgresUnderTest) -> None:
    """A plan for any session must not seem to cost more than one for a session without runs."""

    async def count_plans() -> tuple[int, int]:
        async with postgres.connected() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(MANY_RUNS)
            statement = next(iter(sessions.get_with_history("s-none", EVERYONE, 65_536)))
            text, names = compile_for_postgres(statement.sql)
            for _ in range(8):
                await connection.fetch(text, *(statement.parameters[name] for name in names))
            plans = await connection.fetchrow(
                "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
                " WHERE statement = $1",
                text,
            )
            await transaction.rollback()
        assert plans is not None
        return plans[0], plans[1]

    # The first five are always planned for their values.
    assert asyncio.run(count_plans()) == (3, 5)


MANY_QUEUED = """
INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,
                      history_bytes, created_at, updated_at, metrics)
SELECT 's-' || n, 'agent', '', 0, 0, 0, n, n, '{}' FROM generate_series(0, 99) n;
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, status, background,
                  attempt, created_at, late_result, input, queued_at, queue_turn)
SELECT 'r-' || n, 's-' || n % 100, n, 'agent', 'echo', 'PENDING', 0, 1, n, 0, 'hello', n,
       CASE WHEN n < 100 THEN n ELSE 0 END
FROM generate_series(1, 20000) n;
ANALYZE runs
"""
"""20,000 runs in the queues of 100 sessions, the first of each of which has its turn."""


def test_postgres_finds_the_next_leg_without_reading_the_queue(postgres: PostgresUnderTest) -> None:
    async def explain() -> dict[str, str]:
        found = {}
        async with postgres.connected() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(MANY_QUEUED)
            for sql in (queue._NEXT_LEGS, queue._HEAD):
                text, names = compile_for_postgres(sql)
                given = {"limit": 100, "since": 5, "run_id": "r-5", "session_id": "s-7"}
                rows = await connection.fetch(
                    f"EXPLAIN (ANALYZE, BUFFERS OFF) {text}", *(given[name] for name in names)
                )
                found[sql] = "\n".join(row[0] for row in rows)
            await transaction.rollback()
        return found

    found = asyncio.run(explain())
    assert "runs_next_legs" in found[queue._NEXT_LEGS]
    assert "runs_live_session" in found[queue._HEAD]
    for sql, steps in found.items():
        # The number of rows that a step has read: 100 of 20,000 at most.
        read = [int(rows) for rows in re.findall(r"actual time=\S+ rows=(\d+)", steps)]
        assert max(read) <= 100, (sql, steps)
        removed = [int(rows) for rows in re.findall(r"Rows Removed by Filter: (\d+)", steps)]
        assert sum(removed) <= 100, (sql, steps)


def test_large_reads_of_postgres_are_planned_for_their_values(postgres: PostgresUnderTest) -> None:
    @unit
    def mode() -> Steps[str]:
        yield Statement(Sql("SELECT 1"))
        rows = yield Statement(Sql("SELECT current_setting('plan_cache_mode')"))
        return str(rows[0][0])

    async def modes() -> list[str]:
        database = postgres.database
        return [await database.read(mode(), size=size) for size in ("large", "unknown", "small")]

    found = postgres.runner.run(modes())
    assert found == ["force_custom_plan", "force_custom_plan", "auto"]
