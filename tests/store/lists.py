"""List queries for tests: by keyword arguments, and every combination of filters and orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain, combinations, product
from typing import Any, NamedTuple, TypeVar

from agentctl.interface.requests import RunFilter, SessionFilter, SessionLocator
from agentctl.records.runs import RunRow
from agentctl.store.database import Statement, Work
from agentctl.store.listing import MAXIMUM_TOTAL, RowPage, Slice, Total
from agentctl.store.repositories import lists
from agentctl.store.repositories.lists import ListedSession
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import EVERYONE, Visibility

__all__ = [
    "ListCase",
    "answer_list",
    "bounded_statements_of",
    "list_cases",
    "list_runs",
    "list_sessions",
    "statements_of",
]

T = TypeVar("T")

_PART = {field.name for field in fields(Slice)}


def list_sessions(
    visibility: Visibility = EVERYONE, totals: ListTotals | None = None, **given: Any
) -> Work[RowPage[ListedSession]]:
    """Return the unit for the fields of `SessionFilter`, `SessionLocator` and `Slice`."""
    part = Slice(**{name: given.pop(name) for name in _PART & given.keys()})
    locator = SessionLocator(type=given.pop("type", None), user_id=given.pop("user_id", None))
    return lists.list_sessions(SessionFilter(locator, **given), visibility, part, totals)


def list_runs(
    visibility: Visibility = EVERYONE, totals: ListTotals | None = None, **given: Any
) -> Work[RowPage[RunRow]]:
    """Return the unit for the fields of `RunFilter` and `Slice`."""
    part = Slice(**{name: given.pop(name) for name in _PART & given.keys()})
    return lists.list_runs(RunFilter(**given), visibility, part, totals)


def statements_of(
    work: Work[Any], total: int, removed: int = 0, row: Sequence[Any] = ()
) -> list[Statement]:
    """Return the statements of a list that has `total` rows; the arguments of `answer_list`."""
    return answer_list(work, total, removed, row)[0]


def answer_list(
    work: Work[T], total: int, removed: int = 0, *rows_of_page: Sequence[Any]
) -> tuple[list[Statement], T]:
    """Run the unit of a list without a database; return its statements and its result.

    Args:
        total: the number of rows that each of its counts finds.
        removed: number of rows of its table that were removed.
        rows_of_page: the columns of each row of the page.
    """
    found: list[Statement] = []
    steps = iter(work)
    rows = None
    try:
        while True:
            statement = steps.send(rows)  # type: ignore[arg-type]
            found.append(statement)
            known = [removed] if "FROM removals" in statement.sql else []
            known += [total] * statement.sql.count("count(*)")
            rows = [known]
            if ":limit" in statement.sql:
                rows = [[*row, *known] for row in rows_of_page if row]
    except StopIteration as end:
        return found, end.value


def bounded_statements_of(work: Work[Any], total: int = 1) -> list[Statement]:
    """Return the statements of a list with more rows than are compared for a page.

    Args:
        total: the number of rows that each of its counts finds.
    """
    found: list[Statement] = []
    steps = iter(work)
    rows = None
    try:
        while True:
            found.append(steps.send(rows))  # type: ignore[arg-type]
            values = found[-1].parameters
            ends = [(5, "x"), (4, "x")] if values.get("limit") == 2 else []
            rows = ends if "limit" in values else [(total,)]
    except StopIteration:
        return found


class ListCase(NamedTuple):
    """A list with filters and an order; `many` if it has more rows than `MAXIMUM_TOTAL`."""

    table: str
    visibility: Visibility
    filters: dict[str, Any]
    part: dict[str, Any]
    many: bool

    def statements(
        self, totals: ListTotals | None = None, total: Total | None = None
    ) -> list[Statement]:
        """Return the statements: one, or with a name the one that counts and that of the page.

        Args:
            totals: the remembered totals.
            total: the total of the list, which its cursor has.
        """
        query = self._query(totals, total=total)
        return statements_of(query, MAXIMUM_TOTAL + 1 if self.many else 1)

    def bounded_statements(self) -> list[Statement]:
        """Return the statements if the page is searched for in a part of a longer list."""
        by_range = self.filters.keys() & {"session_name", "finished_after"}
        return bounded_statements_of(self._query(), MAXIMUM_TOTAL + 1 if by_range else 1)

    def _query(self, totals: ListTotals | None = None, **more: Any) -> Work[Any]:
        query = list_sessions if self.table == "sessions" else list_runs
        return query(self.visibility, totals, **self.filters, **self.part, **more)


_VISIBILITIES = (EVERYONE, Visibility(False, "ann"), Visibility(False))

_KEYS = (None, (5, "x"), (15, "x"))
"""Cursors before, between and after the time bounds of the cases."""


def list_cases() -> Iterator[ListCase]:
    """Yield every combination of filters and orders."""
    names: list[dict[str, Any]] = [{}, *({"session_name": name} for name in ("a", chr(0x10FFFF)))]
    for visibility, columns, name, sort, order, after, many in product(
        _VISIBILITIES,
        _subsets("type", "component_id", "user_id"),
        names,
        ("created_at", "updated_at"),
        ("asc", "desc"),
        _KEYS[:2],
        (False, True),
    ):
        part = {"sort": sort, "order": order, "after": after, "limit": 100}
        yield ListCase("sessions", visibility, columns | name, part, many)
    statuses: list[dict[str, Any]] = [
        {},
        *({"status": status} for status in ("COMPLETED", "RUNNING")),
        {"live": True},
        {"at_work": True},
        {"finished_after": 10},
        {"finished_after": 10, "status": "ERROR"},
    ]
    bounds: list[dict[str, Any]] = [
        {},
        {"created_after": 10},
        {"created_before": 12},
        {"created_after": 10, "created_before": 12},
    ]
    for visibility, columns, status, bound, order, after in product(
        _VISIBILITIES,
        _subsets("session_id", "user_id", "component_id", "component_type"),
        statuses,
        bounds,
        ("asc", "desc"),
        _KEYS,
    ):
        part = {"order": order, "after": after, "limit": 100}
        yield ListCase("runs", visibility, columns | status | bound, part, many=False)


def _subsets(*names: str) -> list[dict[str, Any]]:
    chosen = chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))
    return [dict.fromkeys(each, "x") for each in chosen]
