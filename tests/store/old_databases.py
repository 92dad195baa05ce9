"""Databases with the schema of the first migration."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg

from agentctl.store.schema import load_migrations

__all__ = ["old_file", "old_schema"]

ROWS = """
INSERT INTO sessions VALUES ('s1', 'agent', 'echo', 'Echo', 'ann', 'Hello', 0, 1, 2, 'COMPLETED',
                             1, 1, '{}', NULL, NULL, NULL, NULL);
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, status, background,
                  attempt, created_at, finished_at, late_result, history, input)
VALUES ('r1', 's1', 1, 'agent', 'echo', 'COMPLETED', 0, 1, 1, 2, 0, '[]', 'hello');
"""


def old_file(path: Path) -> None:
    """Create a file with the first migration, a session and its run."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.executescript(load_migrations("sqlite")[0].text + ROWS)
        connection.execute("INSERT INTO schema_version VALUES (1, 0)")
        connection.commit()


async def old_schema(connection: asyncpg.Connection[asyncpg.Record], name: str) -> None:
    """Create the same in a new schema of a PostgreSQL server."""
    await connection.execute(f"CREATE SCHEMA {name}; SET search_path = {name}")
    await connection.execute(load_migrations("postgres")[0].text + ROWS)
    await connection.execute("INSERT INTO schema_version VALUES (1, 0)")
