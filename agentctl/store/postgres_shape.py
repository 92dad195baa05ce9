"""The schema that a PostgreSQL database has, held against what the migrations make.

Both engines have the same tables, columns and indexes, so that those of a SQLite file in memory
are what to look for: nothing has to be made on the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentctl.store.postgres_connection import Connection
from agentctl.store.schema import migrations
from agentctl.store.sqlite_shape import columns, indexes

__all__ = ["differences"]

_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema()
"""
_INDEXES = """
SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace
"""
_TRIGGERS = """
SELECT t.tgname, t.tgenabled <> 'D' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal
"""

_TRIGGER = re.compile(r"CREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER (\w+)")


async def differences(connection: Connection, version: int) -> list[str]:
    """What is missing or out of order, each as one line."""
    there = {(str(row[0]), str(row[1])) for row in await connection.fetch(_COLUMNS)}
    named = {str(row[0]): bool(row[1]) for row in await connection.fetch(_INDEXES)}
    triggers = {str(row[0]): bool(row[1]) for row in await connection.fetch(_TRIGGERS)}
    return [
        *(f"column {table}.{name} is missing" for table, name in sorted(columns(version) - there)),
        *_of_kind("index", indexes(version), named),
        *_of_kind("trigger", set(_triggers(version)), triggers),
    ]


def _of_kind(kind: str, wanted: set[str], there: dict[str, bool]) -> Iterator[str]:
    for name in sorted(wanted):
        if name not in there:
            yield f"{kind} {name} is missing"
        elif not there[name]:
            yield f"{kind} {name} is not in force"


def _triggers(version: int) -> Iterator[str]:
    for migration in migrations("postgres"):
        if migration.number <= version:
            for statement in migration.statements():
                yield from _TRIGGER.findall(statement)
