"""Lists: filters, order, totals and cursors. `test_plans` has their indexes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields
from itertools import product
from typing import Any

import pytest

from agentctl.interface.requests.administration import AccountFilter
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.sessions import SummaryRow
from agentctl.store.compared import MAXIMUM_READ
from agentctl.store.database import Sql, Steps, Work, unit
from agentctl.store.listing import (
    GROUP_SIZE,
    Conditions,
    Cursor,
    Listing,
    RowPage,
    Slice,
    as_columns,
    build_any,
    fold_ascii,
    group_ids,
    prefix_end,
    read_group,
)
from agentctl.store.repositories import accounts, memories, run_reads, runs, sessions
from agentctl.store.repositories.lists import SESSIONS
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import EVERYONE, Visibility
from tests.kit.rows import START, a_run, a_session, an_end
from tests.kit.tables import every_row
from tests.store.conftest import Store
from tests.store.lists import list_runs, list_sessions, statements_of


@unit
def some_sessions() -> Steps[None]:
    """Create sessions. Many have the same time, so that only the id orders them."""
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


@unit
def some_runs() -> Steps[None]:
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
            yield from runs.claim(run.spec.run_id, 1, "w1", START)


def walked(store: Store, page: Callable[[Cursor | None], Work[RowPage[Any]]]) -> list[Any]:
    """Every row of a list, by its cursors."""
    rows: list[Any] = []
    after: Cursor | None = None
    while True:
        part = store.read(page(after))
        rows += part.rows
        if part.next is None:
            return rows
        after = part.next


@pytest.fixture
def sessions_store(store: Store) -> Store:
    """A database with sessions, which a test only reads."""
    store.write(some_sessions())
    return store


@pytest.fixture
def runs_store(store: Store) -> Store:
    """A database with sessions and runs, which a test only reads."""
    store.write(some_runs())
    return store


@every_row("sort_by, sort_order", product(("created_at", "updated_at"), ("asc", "desc")))
def test_cursors_return_every_session_once_for_equal_times(
    sessions_store: Store, sort_by: Any, sort_order: Any
) -> None:
    def list_page(after: Cursor | None) -> Work[RowPage[Any]]:
        return list_sessions(sort=sort_by, order=sort_order, limit=7, after=after)

    rows = walked(sessions_store, list_page)
    keys = [(getattr(row, sort_by), row.session_id) for row in rows]
    assert len(set(keys)) == 60
    assert keys == sorted(keys, reverse=sort_order == "desc")


@pytest.mark.parametrize("sort_order", ["asc", "desc"])
def test_unchanged_sessions_are_listed_once_during_changes(store: Store, sort_order: Any) -> None:
    store.write(some_sessions())
    chance = random.Random(3)
    stay = {f"s{number:02}" for number in chance.sample(range(60), 40)}
    going = sorted({f"s{number:02}" for number in range(60)} - stay)
    chance.shuffle(going)
    pages: list[list[str]] = []

    @unit
    def changed() -> Steps[None]:
        for _ in range(min(2, len(going))):
            yield from sessions.delete(going.pop())
        # With the times of other sessions: before, after and at the cursor of the next page.
        for number in (0, 30, 59):
            yield from sessions.create(
                a_session(f"s{number}-{len(pages)}", now=START + number // 10)
            )

    def page(after: Cursor | None) -> Work[RowPage[Any]]:
        return list_sessions(order=sort_order, limit=7, after=after)

    part = store.read(page(None))
    while True:
        pages.append([row.session_id for row in part.rows])
        if part.next is None:
            break
        store.write(changed())
        part = store.read(page(part.next))
    met = [session_id for ids in pages for session_id in ids]
    assert len(met) == len(set(met))
    assert stay <= set(met)


def test_pages_by_offset_return_the_same_list(store: Store) -> None:
    store.write(some_sessions())
    whole = store.read(list_sessions(limit=60))
    parts = [store.read(list_sessions(limit=25, offset=offset)) for offset in (0, 25, 50, 75)]
    assert [row for part in parts for row in part.rows] == whole.rows
    assert {part.total for part in parts} == {60}
    assert [part.next is None for part in parts] == [False, False, True, True]
    assert whole.next is None
    assert len(store.read(list_sessions()).rows) == 20


def test_list_without_rows_has_an_empty_page(store: Store) -> None:
    for query in (list_sessions, list_runs):
        found = store.read(query())
        assert (found.rows, found.total, found.capped, found.next) == ([], 0, False, None)


def test_each_page_of_a_list_is_counted_again(store: Store) -> None:
    store.write(some_sessions())
    first = store.read(list_sessions(limit=25))
    # Its cursor would otherwise have the total for the next page.
    assert not first.keeps_total
    store.write(sessions.delete("s00"))
    assert store.read(list_sessions(limit=25, after=first.next)).total == 59


def test_some_rows_are_read_by_their_ids(sqlite: SqliteDatabase) -> None:
    Store(sqlite).write(some_runs())
    ids = ["s00", "s01", "s25", "none"]
    ann = Conditions().with_equal(user_id="ann")
    joined = sqlite.read_blocking(SESSIONS.read_some(ids, ann, as_columns))
    newest_run = len(fields(SummaryRow)) + 1
    assert {row[0]: row[newest_run] for row in joined} == {"s00": "r36", "s01": "r37"}

    listing = Listing(table="sessions", columns="session_id", id="session_id")
    plain = sqlite.read_blocking(listing.read_some(ids, Conditions(), as_columns))
    assert sorted(plain) == [("s00",), ("s01",), ("s25",)]


def test_ids_of_a_group_are_those_it_was_made_of() -> None:
    ids = [f"s{number}" for number in range(GROUP_SIZE + 2)]
    groups = [read_group(group) for group in group_ids(ids)]
    assert groups == [ids[:GROUP_SIZE], ids[GROUP_SIZE:]]


@every_row(
    "given, expected",
    [
        ({"type": "team"}, 20),
        ({"component_id": "slow"}, 20),
        ({"user_id": "ann"}, 20),
        ({"user_id": "ann", "type": "team"}, 7),
        ({"session_name": "alp"}, 20),
        ({"session_name": "ALPHA"}, 10),
        ({"session_name": "alp", "user_id": "bob", "type": "agent"}, 3),
        ({"session_name": "är"}, 10),
        ({"session_name": "Är"}, 10),
        ({"session_name": ""}, 60),
        ({"session_name": "al%"}, 0),
        ({"session_name": chr(0x10FFFF)}, 0),
        ({"visibility": Visibility(False, "bob")}, 20),
        ({"visibility": Visibility(False, None)}, 20),
        ({"visibility": Visibility(False, "bob"), "user_id": "ann"}, 0),
        ({"visibility": Visibility(False, None), "user_id": "ann"}, 0),
    ],
)
def test_session_filters_select_sessions(
    sessions_store: Store, given: dict[str, Any], expected: int
) -> None:
    values: dict[str, Any] = {"visibility": EVERYONE, "limit": 100} | given
    found = sessions_store.read(list_sessions(**values))
    assert (found.total, len(found.rows), found.capped) == (expected, expected, False)


@every_row(
    "given, expected",
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
def test_run_filters_select_runs_newest_first(
    runs_store: Store, given: dict[str, Any], expected: int
) -> None:
    values: dict[str, Any] = {"visibility": EVERYONE, "limit": 4} | given
    rows = walked(runs_store, lambda after: list_runs(**values, after=after))
    keys = [(row.created_at, row.run_id) for row in rows]
    assert keys == sorted(set(keys), reverse=True)
    assert len(keys) == expected


LIVE_OR_OF_A_TIME: list[dict[str, Any]] = [
    {"live": True},
    {"live": True, "user_id": "ann"},
    {"live": True, "session_id": "s01", "component_id": "slow"},
    {"live": True, "visibility": Visibility(False, None)},
    {"created_after": START + 1},
    {"created_before": START + 1},
    {"created_before": START},
    {"created_after": START + 1, "created_before": START + 3},
    {"created_after": START + 3, "created_before": START + 3},
    {"created_after": START + 4, "created_before": START + 2},
    {"created_after": START + 1, "created_before": START + 4, "user_id": "ann"},
    {"created_after": START + 1, "component_type": "team", "status": "PENDING"},
    {"created_before": START + 3, "status": "COMPLETED", "visibility": Visibility(False, "ann")},
    {"created_after": START + 1, "created_before": START + 4, "live": True},
]


def matches(row: Any, given: dict[str, Any]) -> bool:
    """Return True if a run matches the filters."""
    plain = {name: value for name, value in given.items() if hasattr(row, name)}
    return (
        all(getattr(row, name) == value for name, value in plain.items())
        and (not given.get("live") or row.finished_at is None)
        and given.get("created_after", 0) <= row.created_at
        and row.created_at < given.get("created_before", 2**62)
        and given.get("visibility", EVERYONE).sees(row.user_id)
    )


@pytest.fixture
def ended_runs(runs_store: Store) -> list[Any]:
    """All runs of the database, after a third of them has ended."""

    @unit
    def end_some() -> Steps[list[Any]]:
        for number in range(0, 40, 3):
            yield from runs.finish(an_end(f"r{number:02}"))
        rows = []
        for number in range(4):
            rows += yield from run_reads.list_in_session(f"s{number:02}", limit=1_000)
        return rows

    return runs_store.write(end_some())


@every_row("given, sort_order", product(LIVE_OR_OF_A_TIME, ("asc", "desc")))
def test_lists_of_live_runs_and_time_ranges_are_complete(
    runs_store: Store, ended_runs: list[Any], given: dict[str, Any], sort_order: Any
) -> None:
    expected = [row for row in ended_runs if matches(row, given)]
    expected.sort(key=lambda row: (row.created_at, row.run_id), reverse=sort_order == "desc")
    values: dict[str, Any] = {"visibility": EVERYONE, "order": sort_order, "limit": 4} | given
    assert walked(runs_store, lambda after: list_runs(**values, after=after)) == expected
    found = runs_store.read(list_runs(**values | {"offset": 2}))
    assert (found.rows, found.total) == (expected[2:6], len(expected))


def test_time_bound_at_the_time_of_the_cursor_is_kept(store: Store) -> None:
    store.write(some_runs())
    after = (START + 2, "r19")
    later = store.read(list_runs(created_after=START + 2, order="asc", after=after, limit=100)).rows
    assert [row.run_id for row in later] == [f"r{number}" for number in range(20, 40)]
    earlier = store.read(list_runs(created_before=START + 2, after=after, limit=100)).rows
    assert [row.run_id for row in earlier] == [f"r{number:02}" for number in range(15, -1, -1)]


def test_lists_by_the_beginning_of_an_id_have_exactly_these_ids(store: Store) -> None:
    store.write(some_runs())
    for prefix, ids in (("r1", range(10, 20)), ("r19", [19]), (chr(0x10FFFF), ())):
        found = store.read(list_runs(id_prefix=prefix, order="desc"))
        assert [row.run_id for row in reversed(found.rows)] == [f"r{number}" for number in ids]
    assert store.read(list_sessions(id_prefix="s1")).total == 10


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({"order": "asc", "created_after": 10, "after": (5, "x")}, {"since": 10}),
        ({"order": "asc", "created_after": 10, "after": (10, "x")}, {"after_key": 10}),
        ({"order": "asc", "created_before": 10, "after": (5, "x")}, {"before": 10, "after_key": 5}),
        ({"order": "desc", "created_before": 10, "after": (15, "x")}, {"before": 10}),
        ({"order": "desc", "created_before": 10, "after": (10, "x")}, {"before": 10}),
        ({"order": "desc", "created_before": 10, "after": (5, "x")}, {"after_key": 5}),
        ({"order": "desc", "created_after": 5, "after": (9, "x")}, {"since": 5, "after_key": 9}),
    ],
    ids=str,
)
def test_a_page_begins_at_the_tighter_of_a_time_and_a_cursor(
    given: dict[str, Any], bounds: dict[str, int]
) -> None:
    # The part of the statement that counts the whole list has all bounds of time, but no cursor.
    page = statements_of(list_runs(EVERYONE, limit=4, **given), 1)[0]
    conditions = page.sql[page.sql.rindex("WHERE") :]
    assert {
        name: page.parameters[name]
        for name in ("since", "before", "after_key")
        if f":{name}" in conditions
    } == bounds
    assert page.parameters["limit"] == 5, "a page reads one row more, which shows whether it ends"


def test_only_the_rows_of_another_index_are_sorted_by_their_ids() -> None:
    part = Slice(limit=1)
    plain: list[Work[Any]] = [
        list_sessions(),
        list_runs(),
        memories.list_page(MemoryFilter(), EVERYONE, part),
        accounts.list_page(AccountFilter(), part),
    ]
    for work in plain:
        assert "IN (SELECT" not in statements_of(work, 1)[0].sql
    for work in (list_sessions(id_prefix="s"), list_runs(id_prefix="r"), list_runs(live=True)):
        assert "_id IN (SELECT" in statements_of(work, 1)[-1].sql


def test_condition_of_no_values_matches_nothing(store: Store) -> None:
    store.write(some_sessions())
    for values, count in (((), 0), (("s01", "s02"), 2)):
        text, named = build_any("session_id", values)
        counted = Sql(f"SELECT count(*) FROM sessions WHERE {text}").value(**named)
        assert store.run(store.database.read(counted)) == count


def test_only_ascii_letters_are_folded(store: Store) -> None:
    for text, folded in (("AbZ", "abz"), ("ÄÖ-K", "ÄÖ-k"), ("İ\u212a", "İ\u212a")):
        assert fold_ascii(text) == folded
        if store.is_embedded:
            lower = Sql("SELECT lower(:text)").value(text=text)
            assert store.run(store.database.read(lower)) == folded


def test_a_total_is_capped_and_a_dense_prefix_keeps_its_order(sqlite: SqliteDatabase) -> None:
    store = Store(sqlite)

    @unit
    def many(*numbers: int) -> Steps[None]:
        for number in range(*numbers):
            name = "Same" if number else "Other"
            yield from sessions.create(
                a_session(f"s{number:05}", session_name=name, now=START + number)
            )

    for numbers, capped in (((10_000,), False), ((10_000, 10_001), True), ((10_001, 10_005), True)):
        store.write(many(*numbers))
        found = store.read(list_sessions(limit=1))
        assert (found.total, found.capped) == (10_000, capped)
    found = store.read(list_sessions(session_name="SAME", limit=3))
    assert (found.total, found.capped) == (MAXIMUM_READ, True)
    assert [row.session_id for row in found.rows] == ["s10004", "s10003", "s10002"]
    work = list_sessions(session_name="s", order="asc", limit=2, after=(START, ""))
    assert [row.session_id for row in store.read(work).rows] == ["s00001", "s00002"]


def test_a_prefix_range_contains_exactly_its_prefix() -> None:
    random.seed(7)
    letters = ["a", "B", "z", "é", "\ud7ff", "\ue000", "\U0010ffff", "\U0010fffe", "%", " "]
    texts = ["".join(random.choices(letters, k=random.randint(0, 4))) for _ in range(300)]
    fold = str.maketrans("Bz", "bz")
    for prefix in filter(None, texts[:60]):
        start = fold_ascii(prefix)
        end = prefix_end(start)
        for text in (folded.translate(fold) for folded in texts):
            within = start <= text and (end is None or text < end)
            assert within == text.startswith(prefix.translate(fold))
        assert all(letter < "\ud800" or letter > "\udfff" for letter in end or "")
    assert [prefix_end(f"a{letter}") for letter in "\ud7fe\ud7ff\ue000"] == [
        "a\ud7ff",
        "a\ue000",
        "a\ue001",
    ]
