"""Every portable statement of the store: those of the modules, and those of all lists."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any

import agentctl.store
import agentctl.store.repositories
from agentctl.interface.requests import RunView
from agentctl.interface.requests.administration import AccountFilter
from agentctl.interface.requests.halts import HaltFilter
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.store.database import Sql, Statement, Steps, Work
from agentctl.store.listing import Order, Slice
from agentctl.store.repositories import accounts, halts, memories
from agentctl.store.repositories.terms import TermTable
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import EVERYONE, Visibility
from tests.store.lists import (
    ListCase,
    bounded_statements_of,
    list_cases,
    list_runs,
    list_sessions,
    statements_of,
)

_ORDERS: tuple[Order, ...] = ("asc", "desc")

DRIVERS = ("sqlite", "postgres", "open")
"""The beginnings of the names of modules for one engine, whose statements are not portable."""


def _find_in(value: object) -> Iterator[Sql]:
    if isinstance(value, Sql):
        yield value
    elif isinstance(value, TermTable):
        yield from value.statements.values()
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _find_in(entry)


@functools.cache
def module_statements() -> dict[Sql, str]:
    """Return each statement of the modules, with the name of its module."""
    found: dict[Sql, str] = {}
    for package in (agentctl.store, agentctl.store.repositories):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if info.name.removeprefix("agentctl.store.").startswith(DRIVERS):
                continue
            module = importlib.import_module(info.name)
            for value in vars(module).values():
                found |= dict.fromkeys(_find_in(value), info.name.rpartition(".")[2])
    return found


_COVERED = {"type", "component_id", "component_type", "user_id", "session_id"}
"""Filters on columns of indexes in the order of a list."""


class _LongLists(ListTotals):
    """Totals that know every list as a long one."""

    def has(self, _: Hashable) -> bool:
        return True


def list_statements(step: int = 1) -> Set[Sql]:
    """Return each statement that a list can run.

    Args:
        step: of the combinations of filters and orders, only one of so many counts.
    """
    found = set(_statements_of_other_lists())
    for case in islice(list_cases(), 0, None, step):
        found |= _statements_of_case(case)
    return found


def _statements_of_case(case: ListCase) -> Set[Sql]:
    found = {statement.sql for statement in case.statements()}
    found |= {statement.sql for statement in case.bounded_statements()}
    if case.filters.keys() <= _COVERED:
        # The statements of a list have other columns if its total is remembered or known.
        for totals, total in ((ListTotals(), None), (_LongLists(), None), (None, (5, True))):
            found |= {statement.sql for statement in case.statements(totals, total)}
    return found


def _sort_cases() -> Iterator[ListCase]:
    """Yield all cases, those with few filters first. Most processes need none, and sort none."""
    yield from sorted(list_cases(), key=lambda case: len(case.filters))


_cases = _sort_cases()
"""The cases whose statements were not needed so far."""

_statements_of_cases = set[Sql]()
"""The statements of the other cases."""


def _is_of_a_case(sql: Sql) -> bool:
    """Return True if it is a statement of `list_cases`.

    Those of all cases take three seconds, and the tests need those of lists with few filters.
    """
    while sql not in _statements_of_cases:
        case = next(_cases, None)
        if case is None:
            return False
        _statements_of_cases.update(_statements_of_case(case))
    return True


@functools.cache
def _statements_of_other_lists() -> Set[Sql]:
    """Return the statements of lists with other filters, and of the lists of other records."""
    found = set[Sql]()
    remembering: list[Work[Any]] = [
        list_sessions(totals=ListTotals()),
        list_runs(totals=ListTotals()),
    ]
    for name in (None, "laptop"):
        for order, after in product(_ORDERS, (None, (1, "x"))):
            remembering.append(
                accounts.list_page(AccountFilter(name), Slice(order=order, after=after))
            )
    for values in product((None, "active", "ended"), (None, "agent"), (None, "x")):
        for order, after in product(_ORDERS, (None, (1, "x"))):
            wanted = HaltFilter(*values)  # type: ignore[arg-type]
            remembering.append(halts.list_page(wanted, Slice(order=order, after=after)))
    remembering += _memory_lists()
    remembering += [list_sessions(totals=_LongLists()), list_runs(totals=_LongLists())]
    for work in remembering:
        found |= {statement.sql for statement in statements_of(work, 1)}
    for work in chain(_compared_lists(), _lists_of_ids()):
        for statements in (
            statements_of(work, 1),
            *(bounded_statements_of(work, total) for total in (1, 20_000)),
        ):
            found |= {statement.sql for statement in statements}
    return found


def _compared_lists() -> Iterator[Work[Any]]:
    """Yield lists with filters that no index has."""
    texts: list[dict[str, Any]] = [
        {"tag": ("a",)}, {"metadata": ("a=b",)}, {"metadata": ("a=b", "c=d"), "tag": ("a",)},
        {"error": "x"}, {"status": "ERROR"}, {"status": "RUNNING", "tag": ("a",)},
    ]  # fmt: skip
    for filters, order, after in product(texts, _ORDERS, (None, (3, "x"))):
        for visibility in (EVERYONE, Visibility(False, "ann")):
            part: dict[str, Any] = {"order": order, "after": after}
            yield list_runs(visibility, **filters, **part)
            between = {"created_after": 1, "created_before": 4}
            yield list_runs(visibility, finished_before=4, **part)
            yield list_runs(visibility, **filters, **part, **between)
            yield list_sessions(visibility, **filters, **part, **between)
            for sort in ("created_at", "updated_at"):
                yield list_sessions(visibility, **filters, **part, sort=sort)
                yield list_sessions(visibility, **filters, **part, sort=sort, id_prefix="12345678")
    for sort, order in product(("created_at", "updated_at"), _ORDERS):
        for name in (None, "abc"):
            times = {"created_after": 1, "created_before": 9, "updated_after": 2}
            yield list_sessions(sort=sort, order=order, session_name=name, **times)
            yield list_sessions(sort=sort, order=order, session_name=name, updated_before=9)


def _lists_of_ids() -> Iterator[Work[Any]]:
    """Yield lists of summaries, and lists by the beginning of an id."""
    prefixes = (None, "12345678", chr(0x10FFFF))
    for summary, prefix, everyone in product((False, True), prefixes, (False, True)):
        seen = EVERYONE if everyone else Visibility(everyone=False, user_id="ada")
        form = RunView("summary" if summary else "full")
        yield list_runs(seen, id_prefix=prefix, form=form)
        for order, after in product(_ORDERS, (None, (3, "x"))):
            yield list_sessions(seen, id_prefix=prefix, order=order, after=after)


def _memory_lists() -> Iterator[Work[Any]]:
    texts = (None, "tea", "tea rome")
    topics: tuple[tuple[str, ...], ...] = ((), ("food",), ("food", "é"))
    pages = (Slice("updated_at", "desc"), Slice("created_at", "asc"), Slice("created_at", "desc"))
    for part, after in product(pages, (None, (1, "x"))):
        for text, some, user, agent in product(texts, topics, (None, "ada"), (None, "echo")):
            for visibility in (EVERYONE, Visibility(everyone=False, user_id="ada")):
                wanted = MemoryFilter(user, agent, None, some, text)
                yield memories.list_page(wanted, visibility, replace(part, after=after))


def watched(work: Work[object]) -> Work[object]:
    """Return the unit with a check that it runs nothing but known portable statements."""

    def steps() -> Steps[object]:
        rows = None
        inner = iter(work)
        try:
            while True:
                statement: Statement = inner.send(rows)  # type: ignore[arg-type]
                sql = statement.sql
                assert type(sql) is Sql
                is_known = (
                    sql in module_statements()
                    or sql in _statements_of_other_lists()
                    or _is_of_a_case(sql)
                )
                assert is_known, f"unknown statement: {sql}"
                rows = yield statement
        except StopIteration as end:
            return end.value

    return type(work)(steps)
