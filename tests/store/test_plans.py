"""Lists and other reads: that each statement finds an index, and which."""

from __future__ import annotations

import asyncio
import re
from itertools import product
from typing import Any

import pytest

from agentctl.store.database import Sql, Statement, Steps, Work, compile_for_postgres, unit
from agentctl.store.listing import MAXIMUM_TOTAL
from agentctl.store.repositories import accounts, integrity, runs, sessions
from agentctl.store.repositories.runs import RunQuery
from agentctl.store.repositories.sessions import SessionQuery
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import EVERYONE, Visibility
from tests.postgres import PostgresUnderTest
from tests.store.made import START
from tests.store.statements import ALL


def plan(sqlite: SqliteDatabase, sql: Sql) -> list[str]:
    names = {word.strip(":,()") for word in sql.replace("(", " ").split() if ":" in word}
    values = {name: 1 if name in ("limit", "offset", "after_key") else "x" for name in names}

    @unit
    def explain() -> Steps[list[str]]:
        rows = yield Statement(Sql(f"EXPLAIN QUERY PLAN {sql}"), values)
        return [row[3] for row in rows]

    return sqlite.read_blocking(explain())


def of_table(steps: list[str]) -> str:
    """The only step that looks into a table."""
    (step,) = (each for each in steps if each.startswith(("SEARCH", "SCAN")) and "runs" in each)
    return step


LISTINGS = {"sessions": sessions.LISTING, "runs": runs.LISTING}

SINGLE = [
    ("sessions", ()),
    *(("sessions", (name,)) for name in ("session_type", "component_id", "user_id")),
    *(("sessions", (name,)) for name in ("viewer", "ownerless")),
    *(("sessions", (name, "session_type")) for name in ("viewer", "ownerless")),
    ("sessions", ("viewer", "component_id")),
    ("runs", ()),
    *(("runs", (name,)) for name in (*runs.LISTING.free, "status")),
    *(("runs", (name,)) for name in ("viewer", "ownerless")),
]


@pytest.mark.parametrize(("noun", "present"), SINGLE)
def test_a_list_reads_an_index_in_its_order(
    sqlite: SqliteDatabase, noun: str, present: tuple[str, ...]
) -> None:
    listing = LISTINGS[noun]
    for sort in listing.sorts:
        for order, after in product(("asc", "desc"), (False, True)):
            lead = listing.lead(present, sort=sort)
            steps = plan(sqlite, listing.select(present, lead, sort, order, after))  # type: ignore[arg-type]
            bounded = "SEARCH" if present or after else "SCAN"
            assert [step.split(" (")[0].split("_")[0] for step in steps] == [
                f"{bounded} {noun} USING INDEX {noun}"
            ], steps


COUNTED_BY_AN_INDEX = [
    *SINGLE,
    ("sessions", ("name_from", "name_to", "name_start")),
    ("sessions", ("session_type", "name_from", "name_to", "name_start")),
    ("sessions", ("viewer", "component_id", "name_from", "name_to", "name_start")),
    ("sessions", ("viewer", "session_type", "component_id")),
    ("sessions", ("session_type", "component_id")),
    ("runs", ("viewer", "status", "component_type", "component_id")),
    ("runs", ("component_id", "component_type", "status")),
    ("runs", ("component_type", "status")),
]


@pytest.mark.parametrize(("noun", "present"), COUNTED_BY_AN_INDEX)
def test_a_list_is_counted_without_reading_its_rows(
    sqlite: SqliteDatabase, noun: str, present: tuple[str, ...]
) -> None:
    listing = LISTINGS[noun]
    steps = plan(sqlite, listing.count(present, listing.lead(present)))
    bounded = "SEARCH" if present else "SCAN"
    assert any(step.startswith(f"{bounded} {noun} USING COVERING INDEX") for step in steps), steps
    assert not [step for step in steps if f"{noun} USING INDEX" in step], steps


BOUNDS = ("created_after", "created_before")


@pytest.mark.parametrize("lead", ["", *runs.LISTING.free, "status"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_time_bounds_the_order_that_a_list_is_read_in(
    sqlite: SqliteDatabase, lead: str, order: Any
) -> None:
    present = (*filter(None, [lead]), *BOUNDS)
    leading = runs.LISTING.lead(present)
    first, later = (
        plan(sqlite, runs.LISTING.select(present, leading, "created_at", order, after))
        for after in (False, True)
    )
    cursor = "(created_at,run_id)>(?,?) AND created_at<?"
    if order == "desc":
        cursor = "created_at>? AND (created_at,run_id)<(?,?)"
    for steps, bounds in ((first, "created_at>? AND created_at<?"), (later, cursor)):
        (step,) = steps
        assert step.startswith("SEARCH runs USING INDEX runs_")
        assert bounds in step
    step = of_table(plan(sqlite, runs.LISTING.count(present, leading)))
    assert step.startswith("SEARCH runs USING COVERING INDEX runs_")
    assert "created_at>? AND created_at<?" in step


@pytest.mark.parametrize("more", [(), ("user_id",), ("viewer", "session_id"), BOUNDS])
def test_of_live_runs_no_other_is_read_and_only_a_page_whole(
    sqlite: SqliteDatabase, more: tuple[str, ...]
) -> None:
    present = ("live", *more)
    lead = runs.LISTING.lead(present)
    step = of_table(plan(sqlite, runs.LISTING.count(present, lead)))
    assert "INDEX runs_status_created (status=?" in step
    for order, after in product(("asc", "desc"), (False, True)):
        sql = runs.LISTING.select(present, lead, "created_at", order, after)  # type: ignore[arg-type]
        searches = [step for step in plan(sqlite, sql) if step.startswith(("SEARCH", "SCAN"))]
        assert len(searches) == 2
        assert searches[0].startswith("SEARCH runs USING INDEX sqlite_autoindex_runs_1 (run_id=?)")
        assert "INDEX runs_status_created (status=?" in searches[1]


def lead_of(sqlite: SqliteDatabase, work: Work[Any], *, many: bool = False) -> str:
    """The index that a list reads its page by, when few or many rows match."""
    rows: list[Any] | None = None
    steps, statement = iter(work), None
    try:
        while True:
            statement = steps.send(rows)  # type: ignore[arg-type]
            rows = [(MAXIMUM_TOTAL + 1 if many else 1,)] if "count(*)" in statement.sql else []
    except StopIteration:
        assert statement is not None
        found = plan(sqlite, statement.sql)
        return (
            next(step for step in reversed(found) if " INDEX " in step)
            .split("INDEX ")[1]
            .split()[0]
        )


ANN = Visibility(False, "ann")


@pytest.mark.parametrize(
    ("given", "few", "many"),
    [
        ({"name_prefix": "a"}, "sessions_name", "sessions_created"),
        ({"name_prefix": "a", "session_type": "team"}, "sessions_name", "sessions_type_created"),
        ({"name_prefix": "abc"}, "sessions_name", "sessions_start"),
        ({"name_prefix": "abc", "sort_by": "updated_at"}, "sessions_name", "sessions_updated"),
        ({"session_type": "team", "component_id": "x"}, *["sessions_component_created"] * 2),
        ({"visibility": ANN, "session_type": "team"}, *["sessions_user_type"] * 2),
        (
            {"visibility": ANN, "session_type": "team", "sort_by": "updated_at"},
            *["sessions_user_updated"] * 2,
        ),
        ({"visibility": ANN, "name_prefix": "a"}, "sessions_user_name", "sessions_user_created"),
        ({"user_id": "ann", "sort_by": "updated_at"}, *["sessions_user_updated"] * 2),
    ],
)
def test_the_most_selective_filter_of_a_session_list_leads(
    sqlite: SqliteDatabase, given: dict[str, Any], few: str, many: str
) -> None:
    values: dict[str, Any] = {"visibility": EVERYONE} | given
    assert lead_of(sqlite, sessions.list_page(SessionQuery(**values))) == few
    assert lead_of(sqlite, sessions.list_page(SessionQuery(**values)), many=True) == many


@pytest.mark.parametrize(
    ("given", "index"),
    [
        ({"status": "ERROR", "component_id": "x", "component_type": "team"}, "runs_component"),
        ({"status": "RUNNING", "component_id": "x", "component_type": "team"}, "runs_status"),
        ({"status": "RUNNING", "visibility": ANN}, "runs_status"),
        ({"status": "ERROR", "visibility": ANN}, "runs_user"),
        ({"session_id": "s", "visibility": ANN}, "runs_session"),
        ({"session_id": "s", "visibility": ANN, "live": True}, "runs_status"),
        ({"user_id": "ann", "created_after": START}, "runs_user"),
        ({"created_before": START}, "runs"),
    ],
)
def test_the_most_selective_filter_of_a_run_list_leads(
    sqlite: SqliteDatabase, given: dict[str, Any], index: str
) -> None:
    values: dict[str, Any] = {"visibility": EVERYONE} | given
    assert lead_of(sqlite, runs.list_page(RunQuery(**values))) == f"{index}_created"


def test_very_many_live_runs_are_read_in_the_order_of_the_list(sqlite: SqliteDatabase) -> None:
    query = RunQuery(EVERYONE, live=True)
    assert lead_of(sqlite, runs.list_page(query)) == "runs_status_created"
    assert lead_of(sqlite, runs.list_page(query), many=True) == "runs_created"


SMALL = {
    "idempotency": "created_at <",
    "workers": "SELECT",
    "accounts": "WHERE name =",
    "audit": "ORDER BY seq LIMIT",
}
"""Tables of a day, of some processes or of a team, whose rows are all read, and rarely; and the
oldest rows of the audit, a bounded number in the order of the table itself."""


def test_every_other_statement_searches_by_an_index(sqlite: SqliteDatabase) -> None:
    lists = {
        *sessions.LISTING.variants(),
        *runs.LISTING.variants(),
        *accounts.LISTING.variants(),
    }
    walks = {*integrity._VIOLATIONS.values(), integrity._COUNT_SESSIONS, integrity._PAGE}
    for sql, module in ALL.items():
        if (
            sql in lists
            or module == "database"
            or sql in walks
            or SMALL.get(module, sql + "?") in sql
        ):
            continue
        steps = plan(sqlite, sql)
        # A row of constants is no table: what its subqueries do has steps of its own.
        scans = [step for step in steps if step.startswith("SCAN") and "CONSTANT" not in step]
        assert not [step for step in scans if "COVERING INDEX" not in step], (sql, steps)
        assert not [step for step in steps if "TEMP B-TREE" in step] or "owner" in sql, (sql, steps)


@pytest.mark.parametrize("name", ["principal", "operation", "outcome"])
def test_the_audit_is_read_by_the_index_of_a_filter(sqlite: SqliteDatabase, name: str) -> None:
    found = [sql for sql, module in ALL.items() if module == "audit" and f"AND {name} = :" in sql]
    assert len(found) == {"principal": 4, "operation": 2, "outcome": 1}[name]
    for sql in found:
        (step,) = plan(sqlite, sql)
        wanted = f"INDEX audit_log_{name} ({name}=? AND seq>? AND seq<?)"
        assert wanted in step or wanted.replace("seq", "rowid") in step


def test_live_runs_are_found_without_reading_the_others(sqlite: SqliteDatabase) -> None:
    found = {
        sql: plan(sqlite, sql)[0]
        for sql, module in ALL.items()
        if module == "run_reads" and "status IN" in sql
    }
    assert len(found) == 5
    indexes = ("INDEX runs_live_", "INDEX runs_status_created (status=?)")
    for sql, step in found.items():
        assert any(index in step for index in indexes), (sql, step)


def test_events_of_younger_runs_are_not_looked_at_to_find_old_ones(
    sqlite: SqliteDatabase,
) -> None:
    older = [sql for sql, module in ALL.items() if module == "events" and ":made_before" in sql]
    assert len(older) == 2
    for sql in older:
        *_, of_events, of_runs = plan(sqlite, sql)
        assert "SEARCH run_events USING COVERING INDEX" in of_events
        assert "(run_id<?)" in of_events
        assert of_runs == "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (run_id=?)"


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
"""Enough that what an index costs decides: how a planner reads an empty table is its own affair."""


def test_postgres_finds_live_runs_and_runs_of_a_time_by_an_index(
    postgres: PostgresUnderTest,
) -> None:
    values = {
        "limit": 21, "offset": 0, "after_key": 9000, "after_id": "r-9000",
        "created_after": 8000, "created_before": 10_000, "user_id": "u-1",
    }  # fmt: skip
    asked = [("live",), ("live", "user_id"), ("live", *BOUNDS), BOUNDS, ("user_id", *BOUNDS)]
    wanted = [
        (present, sql)
        for present, lead in ((present, runs.LISTING.lead(present)) for present in asked)
        for sql in (
            runs.LISTING.count(present, lead),
            runs.LISTING.select(present, lead, "created_at", "desc", False),
            runs.LISTING.select(present, lead, "created_at", "desc", True),
        )
    ]

    async def plans() -> list[str]:
        found = []
        async with postgres.connected() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(MANY_RUNS)
            for _, sql in wanted:
                text, names = compile_for_postgres(sql)
                given = [values[name] for name in names]
                rows = await connection.fetch(f"EXPLAIN {text}", *given)
                found.append("\n".join(row[0] for row in rows))
            await transaction.rollback()
        return found

    for (present, sql), steps in zip(wanted, asyncio.run(plans()), strict=True):
        assert "Seq Scan" not in steps, (sql, steps)
        if "live" in present:
            assert re.search(r"using runs_(live_\w+|status_created) ", steps), (sql, steps)
        else:
            assert re.search(r"Index Cond: .*created_at >= '8000'", steps), (sql, steps)


def test_large_reads_of_postgres_are_planned_for_their_values(postgres: PostgresUnderTest) -> None:
    @unit
    def mode() -> Steps[str]:
        yield Statement(Sql("SELECT 1"))
        rows = yield Statement(Sql("SELECT current_setting('plan_cache_mode')"))
        return str(rows[0][0])

    async def modes() -> list[str]:
        database = postgres.database
        return [await database.read(mode(), large=large) for large in (True, False)]

    assert postgres.runner.run(modes()) == ["force_custom_plan", "auto"]
