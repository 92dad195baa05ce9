"""The schema that a SQLite file has, held against what the migrations make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import apsw

from agentctl.store.schema import migrations

__all__ = ["columns", "differences", "indexes", "shape"]

Shape = Mapping[tuple[str, str], str]
"""The SQL of each table, index, view and trigger, by kind and name."""

_ALL = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%'"

_COLUMNS = """
SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'
"""

_INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT LIKE 'sqlite%'"


def shape(connection: apsw.Connection) -> Shape:
    """The schema of a database."""
    rows = connection.execute(_ALL).fetchall()
    return {(str(kind), str(name)): " ".join(str(sql).split()) for kind, name, sql in rows}


def differences(found: Shape, version: int) -> Iterator[tuple[str, bool]]:
    """What differs from the migrations up to a version, each as one line.

    Returns:
        Lines, and whether it is only something that is there besides: `index mine`.
    """
    wanted = shape(_made(version))
    for kind, name in sorted(wanted.keys() - found.keys()):
        yield f"{kind} {name} is missing", False
    for key in sorted(wanted.keys() & found.keys()):
        if wanted[key] != found[key]:
            yield f"{key[0]} {key[1]} is not as the migrations make it", False
    for kind, name in sorted(found.keys() - wanted.keys()):
        yield f"{kind} {name} is not one of ours", True


def columns(version: int) -> set[tuple[str, str]]:
    """Tables and columns that the migrations make, on either engine: they make the same."""
    return {(str(table), str(name)) for table, name in _made(version).execute(_COLUMNS).fetchall()}


def indexes(version: int) -> set[str]:
    """The names of indexes that the migrations make, on either engine."""
    return {str(name) for (name,) in _made(version).execute(_INDEXES).fetchall()}


@cache
def _made(version: int) -> apsw.Connection:
    """A database in memory, made by the migrations."""
    connection = apsw.Connection(":memory:")
    for migration in migrations("sqlite"):
        if migration.number <= version:
            connection.execute(migration.text).fetchall()
    return connection
