"""Lists: filters, order, totals, cursors, and that each statement finds an index."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from agentctl.store import runs, sessions
from agentctl.store.database import Sql, Statement, Work
from agentctl.store.listing import COUNTED, Cursor, Listed, prefix_range
from agentctl.store.runs import RunQuery
from agentctl.store.sessions import SessionQuery
from agentctl.store.sqlite import SqliteDatabase
from agentctl.store.visibility import EVERYONE, Visibility
from tests.store.conftest import Store
from tests.store.made import START, a_run, a_session
from tests.store.statements import ALL


def some_sessions() -> Work[None]:
    """Sessions of which many have the same time, so that only the id orders them."""
    for number in range(60):
        row = a_session(
            f"s{number:02}",
            session_type=("agent", "team", "workflow")[number % 3],
            component_id=("echo", "slow", None)[number % 3],
            user_id=("ann", "bob", None)[number // 20],
            session_name=("Alpha", "alpine", "Beta", "", "ÄRGER", "ärger")[number % 6],
            now=START + number // 10,
        )
        yield from sessions.create(row)


def some_runs() -> Work[None]:
    yield from some_sessions()
    for number in range(40):
        run = a_run(
            f"r{number:02}",
            f"s{number % 4:02}",
            component_type=("agent", "team")[number % 2],
            component_id=("echo", "slow")[number % 2],
            user_id=("ann", None)[number // 30],
            created_at=START + number // 8,
        )
        yield from runs.create(run)
        if number % 5 == 0:
            yield from runs.start(run.run_id, 1, "w1", START)


def walked(store: Store, page: Callable[[Cursor | None], Work[Listed[Any]]]) -> list[Any]:
    """Every row of a list, by its cursors."""
    rows: list[Any] = []
    after: Cursor | None = None
    while True:
        part = store.read(page(after))
        rows += part.rows
        if part.next is None:
            return rows
        after = part.next


@pytest.mark.parametrize("sort_order", ["asc", "desc"])
@pytest.mark.parametrize("sort_by", ["created_at", "updated_at"])
def test_cursors_meet_every_session_once_under_equal_times(
    store: Store, sort_by: Any, sort_order: Any
) -> None:
    store.write(some_sessions())
    rows = walked(
        store,
        lambda after: sessions.page(
            SessionQuery(EVERYONE, sort_by=sort_by, sort_order=sort_order, limit=7, after=after)
        ),
    )
    keys = [(getattr(row, sort_by), row.session_id) for row in rows]
    assert len(set(keys)) == 60
    assert keys == sorted(keys, reverse=sort_order == "desc")


def test_pages_by_offset_are_the_same_list(store: Store) -> None:
    store.write(some_sessions())
    whole = store.read(sessions.page(SessionQuery(EVERYONE, limit=60)))
    parts = [
        store.read(sessions.page(SessionQuery(EVERYONE, limit=25, offset=offset)))
        for offset in (0, 25, 50, 75)
    ]
    assert [row for part in parts for row in part.rows] == whole.rows
    assert {part.total for part in parts} == {60}
    assert [part.next is None for part in parts] == [False, False, True, True]
    assert whole.next is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"session_type": "team"}, 20),
        ({"component_id": "slow"}, 20),
        ({"user_id": "ann"}, 20),
        ({"user_id": "ann", "session_type": "team"}, 7),
        ({"name_prefix": "alp"}, 20),
        ({"name_prefix": "ALPHA"}, 10),
        ({"name_prefix": "alp", "user_id": "bob", "session_type": "agent"}, 3),
        ({"name_prefix": "är"}, 10),
        ({"name_prefix": "Är"}, 10),
        ({"name_prefix": ""}, 60),
        ({"name_prefix": "al%"}, 0),
        ({"name_prefix": chr(0x10FFFF)}, 0),
        ({"visibility": Visibility(False, "bob")}, 20),
        ({"visibility": Visibility(False, None)}, 20),
        ({"visibility": Visibility(False, "bob"), "user_id": "ann"}, 0),
        ({"visibility": Visibility(False, None), "user_id": "ann"}, 0),
    ],
)
def test_session_filters_narrow(store: Store, given: dict[str, Any], expected: int) -> None:
    store.write(some_sessions())
    values: dict[str, Any] = {"visibility": EVERYONE, "limit": 100} | given
    found = store.read(sessions.page(SessionQuery(**values)))
    assert (found.total, len(found.rows), found.capped) == (expected, expected, False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 40),
        ({"status": "RUNNING"}, 8),
        ({"component_type": "team"}, 20),
        ({"component_id": "slow"}, 20),
        ({"session_id": "s01"}, 10),
        ({"user_id": "ann"}, 30),
        ({"status": "PENDING", "session_id": "s01", "user_id": "ann"}, 6),
        ({"visibility": Visibility(False, None)}, 10),
        ({"visibility": Visibility(False, "bob")}, 0),
    ],
)
def test_run_filters_narrow_newest_first(
    store: Store, given: dict[str, Any], expected: int
) -> None:
    store.write(some_runs())
    values: dict[str, Any] = {"visibility": EVERYONE, "limit": 4} | given
    rows = walked(store, lambda after: runs.page(RunQuery(**values, after=after)))
    keys = [(row.created_at, row.run_id) for row in rows]
    assert keys == sorted(set(keys), reverse=True)
    assert len(keys) == expected


def test_a_total_is_capped_and_a_dense_prefix_keeps_its_order(sqlite: SqliteDatabase) -> None:
    store = Store(sqlite)

    def many() -> Work[None]:
        for number in range(COUNTED + 5):
            name = "Same" if number else "Other"
            yield from sessions.create(
                a_session(f"s{number:05}", session_name=name, now=START + number)
            )

    store.write(many())
    found = store.read(sessions.page(SessionQuery(EVERYONE, name_prefix="SAME", limit=3)))
    assert (found.total, found.capped) == (COUNTED, True)
    assert [row.session_id for row in found.rows] == ["s10004", "s10003", "s10002"]
    query = SessionQuery(EVERYONE, name_prefix="s", sort_order="asc", limit=2, after=(START, ""))
    assert [row.session_id for row in store.read(sessions.page(query)).rows] == ["s00001", "s00002"]


def test_a_prefix_range_holds_exactly_what_begins_with_it() -> None:
    random.seed(7)
    letters = ["a", "B", "z", "é", "\ud7ff", "\ue000", "\U0010ffff", "\U0010fffe", "%", " "]
    texts = ["".join(random.choices(letters, k=random.randint(0, 4))) for _ in range(300)]
    fold = str.maketrans("Bz", "bz")
    for prefix in filter(None, texts[:60]):
        start, end = prefix_range(prefix)
        for text in (folded.translate(fold) for folded in texts):
            within = start <= text and (end is None or text < end)
            assert within == text.startswith(prefix.translate(fold))
        assert all(letter < "\ud800" or letter > "\udfff" for letter in end or "")


def plan(sqlite: SqliteDatabase, sql: Sql) -> list[str]:
    names = {word.strip(":,()") for word in sql.replace("(", " ").split() if ":" in word}
    values = {name: 1 if name in ("limit", "offset", "after_key") else "x" for name in names}

    def explain() -> Work[list[str]]:
        rows = yield Statement(Sql(f"EXPLAIN QUERY PLAN {sql}"), values)
        return [row[3] for row in rows]

    return sqlite.read_now(explain())


SINGLE = [
    ("sessions", {}),
    *(("sessions", {name}) for name in ("session_type", "component_id", "user_id")),
    *(("sessions", {name}) for name in ("viewer", "ownerless")),
    ("runs", {}),
    *(("runs", {name}) for name in runs.LISTING.free),
    *(("runs", {name}) for name in ("viewer", "ownerless")),
]


@pytest.mark.parametrize(("noun", "present"), SINGLE)
def test_a_list_reads_an_index_in_its_order(
    sqlite: SqliteDatabase, noun: str, present: set[str]
) -> None:
    listing = {"sessions": sessions.LISTING, "runs": runs.LISTING}[noun]
    lead = {"viewer": "user_id", "ownerless": "user_id"}.get(*present, *present) if present else ""
    for sort in listing.sorts:
        for order in ("asc", "desc"):
            for after in (False, True):
                sql = listing.select(tuple(present), lead, sort, order, after)
                steps = plan(sqlite, sql)
                bounded = "SEARCH" if present or after else "SCAN"
                assert [step.split(" (")[0].split("_")[0] for step in steps] == [
                    f"{bounded} {noun} USING INDEX {noun}"
                ], steps
    bounded = "SEARCH" if present else "SCAN"
    for sql in (listing.probe(tuple(present), lead), listing.count(tuple(present), lead)):
        assert plan(sqlite, sql)[0].startswith(f"{bounded} {noun} USING COVERING INDEX")


def lead_of(sqlite: SqliteDatabase, work: Work[Any], *, many: bool = False) -> str:
    """The index that a list reads its page by, when few or many rows match."""
    rows: list[Any] | None = None
    statement = None
    try:
        while True:
            statement = work.send(rows)  # type: ignore[arg-type]
            rows = [(1,)] if many or "count(*)" in statement.sql else []
            if ":offset" in statement.sql:
                rows = []
    except StopIteration:
        assert statement is not None
        steps = plan(sqlite, statement.sql)
        return (
            next(step for step in reversed(steps) if " INDEX " in step)
            .split("INDEX ")[1]
            .split()[0]
        )


ANN = Visibility(False, "ann")


@pytest.mark.parametrize(
    ("given", "few", "many"),
    [
        ({"name_prefix": "a"}, "sessions_name", "sessions_created"),
        ({"name_prefix": "a", "session_type": "team"}, "sessions_name", "sessions_type_created"),
        ({"session_type": "team", "component_id": "x"}, *["sessions_component_created"] * 2),
        ({"visibility": ANN, "session_type": "team"}, *["sessions_user_created"] * 2),
        ({"visibility": ANN, "name_prefix": "a"}, *["sessions_user_created"] * 2),
        ({"user_id": "ann", "sort_by": "updated_at"}, *["sessions_user_updated"] * 2),
    ],
)
def test_the_most_selective_filter_of_a_session_list_leads(
    sqlite: SqliteDatabase, given: dict[str, Any], few: str, many: str
) -> None:
    values: dict[str, Any] = {"visibility": EVERYONE} | given
    assert lead_of(sqlite, sessions.page(SessionQuery(**values))) == few
    assert lead_of(sqlite, sessions.page(SessionQuery(**values)), many=True) == many


@pytest.mark.parametrize(
    ("given", "index"),
    [
        ({"status": "ERROR", "component_id": "x", "component_type": "team"}, "runs_component"),
        ({"status": "RUNNING", "component_id": "x", "component_type": "team"}, "runs_status"),
        ({"status": "RUNNING", "visibility": ANN}, "runs_status"),
        ({"status": "ERROR", "visibility": ANN}, "runs_user"),
        ({"session_id": "s", "visibility": ANN}, "runs_session"),
    ],
)
def test_the_most_selective_filter_of_a_run_list_leads(
    sqlite: SqliteDatabase, given: dict[str, Any], index: str
) -> None:
    values: dict[str, Any] = {"visibility": EVERYONE} | given
    assert lead_of(sqlite, runs.page(RunQuery(**values))) == f"{index}_created"


SMALL = {"idempotency": "created_at <", "workers": "SELECT"}
"""Tables of a day or of some processes, and the statements that read all of them, rarely."""


def test_every_other_statement_searches_by_an_index(sqlite: SqliteDatabase) -> None:
    lists = {*sessions.LISTING.variants(), *runs.LISTING.variants()}
    for sql, module in ALL.items():
        if sql in lists or module == "probe" or SMALL.get(module, sql + "?") in sql:
            continue
        steps = plan(sqlite, sql)
        scans = [step for step in steps if step.startswith("SCAN")]
        assert not [step for step in scans if "COVERING INDEX" not in step], (sql, steps)
        assert not [step for step in steps if "TEMP B-TREE" in step] or "owner" in sql, (sql, steps)


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
