"""Every statement that the repositories have, found in their modules."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

import agentctl.store
import agentctl.store.repositories
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.listing import Listing

DRIVERS = ("sqlite", "postgres", "open")
"""How modules of one engine begin; their statements need not be portable."""


def _in_value(value: object) -> Iterator[Sql]:
    if isinstance(value, Sql):
        yield value
    elif isinstance(value, Listing):
        yield from value.variants()
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _in_value(entry)


def every_statement() -> dict[Sql, str]:
    """Each statement, with the module that has it."""
    found: dict[Sql, str] = {}
    for package in (agentctl.store, agentctl.store.repositories):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if info.name.removeprefix("agentctl.store.").startswith(DRIVERS):
                continue
            module = importlib.import_module(info.name)
            for value in vars(module).values():
                found |= dict.fromkeys(_in_value(value), info.name.rpartition(".")[2])
    return found


ALL = every_statement()


@unit
def watched(work: Work[object]) -> Steps[object]:
    """The unit, held to the rule that it runs nothing but known portable statements."""
    rows, steps = None, iter(work)
    try:
        while True:
            statement: Statement = steps.send(rows)  # type: ignore[arg-type]
            assert type(statement.sql) is Sql
            assert statement.sql in ALL, f"built at run time: {statement.sql}"
            rows = yield statement
    except StopIteration as end:
        return end.value
