"""The repository of the audit log, on both engines."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.interface.requests.administration import AuditFilter
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.repositories import audit
from agentctl.store.repositories.audit import MAXIMUM_READ, AuditRow, AuditRowPage
from tests.kit.rows import START
from tests.kit.tables import every_row
from tests.store.conftest import Store


def entry(at: int = START, **given: Any) -> AuditRow:
    values: dict[str, Any] = {
        "principal": "me",
        "via": "http",
        "operation": "rename_session",
        "resource": "session:s1",
        "outcome": "allowed",
        "status": None,
        "reason": None,
        "request_id": "r",
    }
    return AuditRow(at=at, **(values | given))


@unit
def append_each(entries: list[AuditRow]) -> Steps[None]:
    for each in entries:
        yield from audit.append_entry(each)


def read(store: Store, limit: int, before: int | None = None, **filter: Any) -> AuditRowPage:
    """Read one page."""
    return store.read(audit.list_page(AuditFilter(**filter, limit=limit), before))


def pages(store: Store, limit: int, before: int | None = None, **filter: Any) -> list[AuditRow]:
    """Read all pages of a query."""
    found: list[AuditRow] = []
    while True:
        part = read(store, limit, before, **filter)
        found += part.rows
        assert len(part.rows) <= limit
        before = part.next
        if before is None:
            return found
        assert len(part.rows) == limit


def test_an_empty_audit_log_has_one_empty_page(store: Store) -> None:
    assert read(store, 5) == AuditRowPage([], None)
    assert read(store, 5, since=START, before=7) == AuditRowPage([], None)


def test_an_appended_entry_is_read_unchanged(store: Store) -> None:
    made = [
        entry(),
        entry(START + 1, principal=None, resource=None, request_id=None),
        entry(START + 2, via="local", outcome="denied", status=403, reason="agents:é:run"),
    ]
    store.write(append_each(made))
    found = pages(store, 2)
    assert [row._replace(seq=0) for row in found] == made[::-1]
    assert [row.seq for row in found] == sorted((row.seq for row in found), reverse=True)


WINDOW = 60
"""Rows of the first window in these tests."""

COUNT = 3 * WINDOW + 17
"""More rows than the first two windows have."""


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read few rows in a window, eight times as many in the last one."""
    monkeypatch.setattr(audit, "FIRST_WINDOW", WINDOW)
    monkeypatch.setattr(audit, "MAXIMUM_WINDOW", 8 * WINDOW)


@pytest.fixture
def with_old_entries(store: Store, windows: None) -> Store:
    """A log in which the rows that match filters are far from each other."""
    odd = {
        0: entry(START, principal="ann"),
        5: entry(START + 5, outcome="failed"),
        WINDOW: entry(START + WINDOW, operation="delete_session"),
        COUNT - 1: entry(START + COUNT - 1, principal="ann", outcome="failed"),
    }
    store.write(append_each([odd.get(n, entry(START + n)) for n in range(COUNT)]))
    return store


@every_row("limit", [1, 7, 100])
def test_filters_find_old_entries(with_old_entries: Store, limit: int) -> None:
    count = COUNT

    def at(**wanted: Any) -> list[int]:
        return [row.at - START for row in pages(with_old_entries, limit, **wanted)]

    assert at(principal="ann") == [count - 1, 0]
    assert at(outcome="failed") == [count - 1, 5]
    assert at(operation="delete_session") == [WINDOW]
    assert at(principal="ann", outcome="failed") == [count - 1]
    assert at(principal="nobody") == []
    assert at(principal="ann", since=START + 1) == [count - 1]
    assert at(outcome="failed", since=START + 5) == [count - 1, 5]
    if limit > 1:
        assert at(since=START + count - 40) == list(range(count - 1, count - 41, -1))
        assert at() == list(range(count - 1, -1, -1))


def test_a_read_ends_at_a_window_of_older_rows(store: Store, windows: None) -> None:
    """A clock was set back: some rows are older than the rows before them."""
    day = 24 * 3_600_000_000
    times = [START + n for n in range(50)] + [START - day + n for n in range(50)]
    store.write(append_each([entry(at) for at in times]))
    assert len(pages(store, 30, since=START)) == 50
    looks = 0

    @unit
    def counted(work: Work[Any]) -> Steps[Any]:
        nonlocal looks
        rows = None
        steps = iter(work)
        try:
            while True:
                statement = steps.send(rows)  # type: ignore[arg-type]
                looks += ":floor" in statement.sql
                rows = yield statement
        except StopIteration as end:
            return end.value

    store.write(append_each([entry(START + day) for _ in range(9 * WINDOW)]))
    work = audit.list_page(AuditFilter(principal="nobody", since=START + 2 * day, limit=30))
    assert store.read(counted(work)) == AuditRowPage([], None)
    assert looks == 2


def test_page_ends_early_after_the_compared_rows(store: Store) -> None:
    count = 2 * MAXIMUM_READ + 10
    outcomes: list[Any] = ["failed", *["allowed"] * (count - 1)]
    store.write(append_each([entry(START + n, outcome=each) for n, each in enumerate(outcomes)]))
    wanted = {"principal": entry().principal, "outcome": "failed"}
    first = read(store, 5, **wanted)
    assert (first.rows, first.searched_until) == ([], START + count - MAXIMUM_READ)
    second = read(store, 5, first.next, **wanted)
    assert (second.rows, second.searched_until) == ([], START + 10)
    last = read(store, 5, second.next, **wanted)
    assert ([row.at for row in last.rows], last.next) == ([START], None)


def test_page_with_a_time_ends_after_the_last_window(store: Store, windows: None) -> None:
    store.write(append_each([entry(START + n) for n in range(16 * WINDOW)]))
    page = read(store, 5, principal="nobody", since=START)
    assert (page.rows, page.searched_until) == ([], START + WINDOW)
    assert page.next is not None
    assert read(store, 5, page.next, principal="nobody", since=START) == AuditRowPage([], None)


def test_cursors_outside_the_audit_log(store: Store) -> None:
    store.write(append_each([entry(START + n) for n in range(3)]))
    assert len(pages(store, 5, before=10**18 - 1)) == 3
    assert pages(store, 5, before=0) == []
    assert pages(store, 5, before=-5) == []


def test_new_rows_do_not_change_later_pages(store: Store) -> None:
    store.write(append_each([entry(START + n) for n in range(4)]))
    first = read(store, 2)
    store.write(append_each([entry(START + 9) for _ in range(5)]))
    second = read(store, 2, before=first.next)
    assert [row.at - START for row in first.rows + second.rows] == [3, 2, 1, 0]
    assert second.next is None


def test_old_rows_are_deleted_in_batches(store: Store) -> None:
    old = audit.DELETE_BATCH + 3
    store.write(append_each([entry(START)] * old + [entry(START + 1)] * 2))
    assert not store.read(audit.has_older(START))
    assert store.read(audit.has_older(START + 1))
    removed = [store.write(audit.delete_older(START + 1)) for _ in range(3)]
    assert removed == [audit.DELETE_BATCH, 3, 0]
    assert not store.read(audit.has_older(START + 1))
    assert [row.at for row in pages(store, 5)] == [START + 1] * 2


def test_a_row_from_the_future_does_not_keep_old_rows(store: Store) -> None:
    store.write(append_each([entry(START + 10**15), entry(START), entry(START + 1)]))
    assert store.read(audit.has_older(START + 1))
    assert store.write(audit.delete_older(START + 1)) == 1
    assert [row.at - START for row in pages(store, 5)] == [1, 10**15]


def test_a_number_is_never_used_twice(store: Store) -> None:
    store.write(append_each([entry(), entry()]))
    last = pages(store, 5)[0].seq
    store.write(audit.delete_older(START + 1))
    assert pages(store, 5) == []
    store.write(append_each([entry()]))
    assert pages(store, 5)[0].seq > last


def test_a_row_is_undone_with_its_transaction(store: Store) -> None:
    @unit
    def refused() -> Steps[None]:
        yield from audit.append_entry(entry())
        raise LookupError

    with pytest.raises(LookupError):
        store.write(refused())
    assert read(store, 5) == AuditRowPage([], None)


def test_a_read_uses_the_key_without_a_sort(store: Store) -> None:
    if not hasattr(store.database, "read_now"):
        pytest.skip("compares a plan: none, this is of SQLite")

    @unit
    def explain(sql: str) -> Steps[list[str]]:
        names = ("floor", "before", "since", "principal", "operation", "outcome", "limit")
        values = dict.fromkeys(names, 1)
        rows = yield Statement(Sql(f"EXPLAIN QUERY PLAN {sql}"), values)
        return [row[3] for row in rows]

    (step,) = store.database.read_blocking(explain(audit._SINCE))
    assert step.startswith("SEARCH audit_log USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)")
