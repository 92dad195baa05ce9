"""Looking through a whole SQLite file for `agentctl db check`; nothing is changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import apsw

from agentctl.store import sqlite_shape
from agentctl.store.sqlite_apart import apart

__all__ = ["damage", "dangling", "differences"]

MOST = 5
"""Damages that are told: where there are more, there are many."""


async def damage(path: Path) -> list[str]:
    """What is damaged, a line each. Raises Unavailable when not even that can be found out."""

    def look(connection: apsw.Connection, _: object) -> list[str]:
        rows = connection.execute(f"PRAGMA integrity_check({MOST})").fetchall()
        texts = [" ".join(str(row[0]).split()) for row in rows]
        return [] if texts == ["ok"] else texts

    return await apart(path, look)


async def dangling(path: Path) -> list[tuple[str, int]]:
    """Tables with rows that refer to a row that is not there, and how many of them."""

    def look(connection: apsw.Connection, _: object) -> list[tuple[str, int]]:
        rows = connection.execute("PRAGMA foreign_key_check")
        return sorted(Counter(str(row[0]) for row in rows).items())

    return await apart(path, look)


async def differences(path: Path, version: int) -> list[tuple[str, bool]]:
    """What `sqlite_shape.differences` finds."""
    found = await apart(path, lambda connection, _: sqlite_shape.shape(connection))
    return list(sqlite_shape.differences(found, version))
