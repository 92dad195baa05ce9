"""Looking into a SQLite file for `agentctl doctor`; nothing is changed.

Looking through a whole SQLite file for `agentctl db check`; nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import apsw

from agentctl.store.sqlite import schema
from agentctl.store.sqlite.connection import (
    WAL_BYTES,
    connect_reader,
    connect_writer,
    to_public_error,
)
from agentctl.store.sqlite.thread import run_on_thread

__all__ = [
    "WAL_BYTES",
    "check_integrity",
    "find_damage",
    "find_dangling_rows",
    "find_schema_differences",
    "get_sqlite_version",
    "read_journal_mode",
    "try_write_lock",
]


def get_sqlite_version() -> str:
    """The version of SQLite that is in use: that of apsw, not the system's."""
    return apsw.sqlite_lib_version()


async def check_integrity(path: Path) -> str | None:
    """What is damaged in a file, one line; None: nothing was found.

    It reads the whole file, on a thread, and ends at once when the task is cancelled.

    Raises:
        Unavailable: it cannot be read.
    """
    return await run_on_thread(path, lambda connection, _: _quick_check(connection))


def _quick_check(connection: apsw.Connection) -> str | None:
    found = str(connection.execute("PRAGMA quick_check(1)").fetchall()[0][0])
    return None if found == "ok" else " ".join(found.split())


def read_journal_mode(path: Path) -> str:
    """The journal mode of a file: `wal`, unless somebody changed it. Raises Unavailable."""
    connection = _reader(path)
    try:
        return str(connection.pragma("journal_mode"))
    except apsw.Error as error:
        raise to_public_error(error, path.name) from None
    finally:
        connection.close(True)


def try_write_lock(path: Path) -> None:
    """Begin to write, and leave it at that.

    Raises:
        Unavailable: it cannot be written, or another process writes for longer than writers wait.
    """
    try:
        connection = connect_writer(path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise to_public_error(error, path.name) from None


def _reader(path: Path) -> apsw.Connection:
    try:
        return connect_reader(path)
    except apsw.Error as error:
        raise to_public_error(error, path.name) from None


MAXIMUM_DAMAGES = 5
"""Damages that are told: where there are more, there are many."""


async def find_damage(path: Path) -> list[str]:
    """What is damaged, a line each. Raises Unavailable when not even that can be found out."""

    def look(connection: apsw.Connection, _: object) -> list[str]:
        rows = connection.execute(f"PRAGMA integrity_check({MAXIMUM_DAMAGES})").fetchall()
        texts = [" ".join(str(row[0]).split()) for row in rows]
        return [] if texts == ["ok"] else texts

    return await run_on_thread(path, look)


async def find_dangling_rows(path: Path) -> list[tuple[str, int]]:
    """Tables with rows that refer to a row that is not there, and how many of them."""

    def look(connection: apsw.Connection, _: object) -> list[tuple[str, int]]:
        rows = connection.execute("PRAGMA foreign_key_check")
        return sorted(Counter(str(row[0]) for row in rows).items())

    return await run_on_thread(path, look)


async def find_schema_differences(path: Path, version: int) -> list[tuple[str, bool]]:
    """What `sqlite_shape.differences` finds."""
    found = await run_on_thread(path, lambda connection, _: schema.read_schema(connection))
    return list(schema.compare_schema(found, version))
