"""Lists with filters that no index has: a bounded number of rows is compared for each page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.records.runs import RunRow
from agentctl.records.sessions import SummaryRow
from agentctl.store import compared
from agentctl.store.database import Steps, Work, unit
from agentctl.store.listing import RowPage
from agentctl.store.repositories import lists, runs, sessions
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import Visibility
from tests.kit.rows import START, a_run, a_session, an_end
from tests.store.conftest import Store
from tests.store.lists import bounded_statements_of, list_runs, list_sessions, statements_of
from tests.store.test_plans import indexes, plan_list

MAXIMUM = 7
COUNT = 40
MATCHING = {1, 2, 3, 20, 38}
ANN = Visibility(everyone=False, user_id="ann")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "MAXIMUM_READ", MAXIMUM)


@unit
def create(numbers: list[int]) -> Steps[None]:
    """Create sessions. Three of them have the same time, so that only the id orders them."""
    for number in numbers:
        tags = ["rare"] if number in MATCHING else ["usual"]
        metadata = json.dumps({"tags": tags})
        row = a_session(f"s{number:02}", now=START + number // 3, metadata=metadata)
        yield from sessions.create(row)


def read(store: Store, **page: Any) -> RowPage[SummaryRow]:
    return store.read(list_sessions(ANN, tag=("rare",), **page))


def walk(store: Store, **page: Any) -> list[RowPage[SummaryRow]]:
    pages = [read(store, **page)]
    while (last := pages[-1]).next is not None:
        following = page | {"after": last.next, "total": (last.total, last.capped)}
        pages.append(read(store, **following))
    return pages


def ids_of(pages: list[RowPage[SummaryRow]]) -> list[int]:
    return [int(row.session_id[1:]) for page in pages for row in page.rows]


def test_pages_have_each_row_once_within_the_bound(store: Store) -> None:
    store.write(create(list(range(COUNT))))
    for order in ("asc", "desc"):
        for sort in ("created_at", "updated_at"):
            pages = walk(store, sort=sort, order=order, limit=2)
            assert ids_of(pages) == sorted(MATCHING, reverse=order == "desc")
            assert any(not page.rows and page.next for page in pages)
            for page in pages:
                ends_early = page.next is not None and len(page.rows) < 2
                assert (page.searched_until is not None) == ends_early
                assert page.searched_until in (None, page.next and page.next[0])
            # The total is that of the first page, which has compared 7 rows of 40.
            first = {"asc": 3, "desc": 1}[order]
            assert {(page.total, page.capped) for page in pages} == {(first, True)}
    # The end of a page with all rows is its last row; each other page has compared 7 rows.
    (page,) = walk(store, order="asc", created_after=START, created_before=START + 2)
    assert ids_of([page]) == [1, 2, 3]
    assert (page.total, page.capped, page.next) == (3, False, None)
    unknown = read(store, after=(START + 13, "s39"))
    assert (unknown.total, unknown.capped) == (1, True)


def test_last_compared_row_is_part_of_its_page(store: Store) -> None:
    store.write(create(list(range(14, 27))))  # s20 is the seventh of both orders
    for order in ("asc", "desc"):
        first, *rest = walk(store, order=order)
        assert (ids_of([first]), ids_of(rest)) == ([20], [])
        assert (first.total, first.capped) == (1, True)


def test_list_of_the_bound_has_no_next_page(store: Store) -> None:
    store.write(create(list(range(MAXIMUM))))
    (page,) = walk(store, order="asc")
    assert ids_of([page]) == [1, 2, 3]
    assert (page.total, page.capped) == (3, False)


def test_page_numbers_skip_rows_that_match(store: Store) -> None:
    store.write(create(list(range(COUNT))))
    page = read(store, order="asc", limit=2, offset=2)
    assert ids_of([page]) == [3]
    assert page.next == (START + 2, "s06")


def test_runs_are_compared_as_sessions_are(store: Store) -> None:
    @unit
    def create_runs() -> Steps[None]:
        yield from sessions.create(a_session("s1"))
        for number in range(COUNT):
            metadata = json.dumps({"tags": ["rare" if number in MATCHING else "usual"]})
            row = a_run(f"r{number:02}", created_at=START + number // 3, metadata=metadata)
            yield from runs.create(row)

    store.write(create_runs())
    found: list[RunRow] = []
    after = None
    while True:
        page = store.read(list_runs(tag=("rare",), order="asc", limit=2, after=after))
        found += page.rows
        if (after := page.next) is None:
            break
    assert [run.run_id for run in found] == [f"r{number:02}" for number in sorted(MATCHING)]
    assert all(run.status == "PENDING" for run in found)


def test_more_rows_are_compared_with_the_columns_of_an_index() -> None:
    compared_rows: list[tuple[Work[Any], int]] = [
        (list_runs(error="x"), MAXIMUM),
        (list_sessions(error="x"), MAXIMUM),
        (list_runs(error_code="x"), MAXIMUM),
        (list_runs(session_id="x", user_id="x"), MAXIMUM),
        (list_runs(ANN, session_id="x"), MAXIMUM),
        (list_runs(ANN, component_id="x", user_id="ann"), 10_000),
        (list_runs(component_id="x", status="ERROR"), 10_000),
        (list_sessions(sort="updated_at", user_id="x", type="agent"), 10_000),
        (list_sessions(sort="updated_at", type="agent"), 10_000),
        (list_sessions(user_id="x", component_id="x", type="agent"), 10_000),
        (list_runs(component_id="x", status="COMPLETED"), MAXIMUM),
    ]
    for work, maximum in compared_rows:
        ends = [each.parameters for each in bounded_statements_of(work)]
        assert {each["offset"] for each in ends if each.get("limit") == 2} == {maximum - 1}


@pytest.mark.parametrize("maximum", [len(MATCHING), len(MATCHING) - 1])
def test_sessions_of_a_component_are_sorted_or_compared(
    store: Store, monkeypatch: pytest.MonkeyPatch, maximum: int
) -> None:
    @unit
    def create_sessions() -> Steps[None]:
        for number in range(COUNT):
            name = "rare" if number in MATCHING else "usual"
            row = a_session(f"s{number:02}", now=START - number, component_id=name)
            row.updated_at = START + number
            yield from sessions.create(row)

    store.write(create_sessions())
    monkeypatch.setattr(lists, "MAXIMUM_READ", maximum)
    monkeypatch.setattr(compared, "MAXIMUM_COMPARED", 10)
    pages = 0
    after = None
    total = None
    found: list[str] = []
    while True:
        part = {"sort": "updated_at", "order": "asc", "limit": 2, "after": after, "total": total}
        page = store.read(list_sessions(component_id="rare", **part))
        found = found + [row.session_id for row in page.rows]
        pages = pages + 1
        after = page.next
        total = (page.total, page.capped)
        if after is None:
            break
    assert found == [f"s{number:02}" for number in sorted(MATCHING)]
    assert (pages, total) == ((3, (5, False)) if maximum == len(MATCHING) else (5, (3, True)))


def test_page_goes_on_behind_runs_that_ended_later(store: Store) -> None:
    @unit
    def create_runs() -> Steps[None]:
        yield from sessions.create(a_session("s1"))
        for number in range(COUNT):
            yield from runs.create(a_run(f"r{number:02}", created_at=START + number))
            yield from runs.claim(f"r{number:02}", 1, "w1", START)
            if number in MATCHING:
                yield from runs.finish(
                    an_end(f"r{number:02}", finished_at=START + 900, stopped_at=START + 900)
                )

    store.write(create_runs())
    for filters in ({"finished_before": START + 901}, {"finished_after": START}):
        found: list[str] = []
        after = None
        pages = 0
        while pages < 30:
            page = store.read(list_runs(order="asc", limit=2, after=after, **filters))
            found += [row.run_id for row in page.rows]
            pages += 1
            if (after := page.next) is None:
                break
        assert found == [f"r{number:02}" for number in sorted(MATCHING)]
        # The second filter finds few runs by their end, and sorts them.
        assert pages == (3 if "finished_after" in filters else 7)


def test_page_goes_on_behind_many_ids_with_the_same_beginning(store: Store) -> None:
    store.write(create(list(range(COUNT))))
    for prefix, numbers in (("s0", range(10)), ("s", range(COUNT)), ("x", range(0))):
        after = None
        found = list[int]()
        while True:
            page = store.read(list_sessions(ANN, id_prefix=prefix, order="asc", after=after))
            found += ids_of([page])
            if (after := page.next) is None:
                break
        assert found == list(numbers)


def test_changes_neither_repeat_nor_lose_rows(store: Store) -> None:
    store.write(create(list(range(0, COUNT - 2, 2))))
    first = read(store, order="asc", limit=1)
    assert ids_of([first]) == [2]
    # Those before the end of the first page are not listed: the page has compared these rows.
    store.write(create([1, 3, 5, 38]))
    rest = walk(store, order="asc", limit=1, after=first.next)
    assert ids_of(rest) == [20, 38]


def test_texts_that_postgresql_cannot_read_match_nothing(store: Store) -> None:
    @unit
    def create_odd() -> Steps[None]:
        for number, value in enumerate(('"\\u0000"', '"\\\\u0001"', "[]", '{"tags": 1}')):
            metadata = f'{{"tags": ["rare"], "x": {value}}}'
            yield from sessions.create(a_session(f"s{number}", metadata=metadata))
        yield from sessions.create(a_session("s4", metadata="[]"))
        yield from sessions.create(a_session("s5", metadata="null"))

    store.write(create_odd())
    assert ids_of([read(store, order="asc")]) == [1, 2, 3]
    page = store.read(list_sessions(ANN, metadata=("x=[]",)))
    assert ids_of([page]) == [2]


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (list_sessions(tag=("x",)), "sessions_by_created"),
        (list_sessions(sort="updated_at", status="ERROR"), "sessions_by_updated"),
        (list_sessions(user_id="x", error="x", after=(5, "x")), "sessions_by_user"),
        (list_sessions(created_before=9, sort="updated_at"), "sessions_by_updated"),
        (list_sessions(updated_after=9, type="agent"), "sessions_by_created"),
        (list_runs(tag=("x",), component_id="x"), "runs_by_component"),
        (list_runs(metadata=("a=b",), created_after=5, after=(9, "x")), "runs_by_created"),
        (list_runs(error="x"), "runs_by_status"),
        (list_runs(status="CANCELLED", component_id="x", created_after=5), "runs_by_status"),
        (list_runs(status="COMPLETED", component_type="x", after=(9, "x")), "runs_by_created"),
        (list_runs(error="x", user_id="x", parent="none", model="x"), "runs_user_created"),
    ],
)
def test_bounds_and_pages_are_read_in_the_order_of_an_index(
    sqlite: SqliteDatabase, query: Work[Any], index: str
) -> None:
    for statement in bounded_statements_of(query):
        counted, page = plan_list(sqlite, [statement])
        # The calls of JSON functions and the newest run are looked up for each row.
        steps = [step for step in counted or page if "VIRTUAL TABLE" not in step]
        own = [step for step in steps if "runs_turns" not in step]
        *by_id, searched = indexes(own)
        assert searched == index, (statement.sql, steps)
        # Only the ids of the rows that match are sorted.
        assert bool(by_id) == any("TEMP B-TREE" in step for step in steps), (statement.sql, steps)


def test_few_live_sessions_are_found_by_their_runs(sqlite: SqliteDatabase) -> None:
    for status, index in (("RUNNING", "runs_live"), ("PAUSED", "runs_paused")):
        for statement in statements_of(list_sessions(status=status), 1):
            counted, page = plan_list(sqlite, [statement])
            found = indexes(counted or page)
            assert set(found) == {"sqlite_autoindex_sessions_1", index}, statement.sql
