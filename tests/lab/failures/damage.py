"""Stored data of a session that another program has damaged, by its column and the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tests.kit.conditions import PATIENCE
from tests.kit.postgres import ConnectedTo
from tests.lab.failures.table import DAMAGED
from tests.lab.world import World

__all__ = ["STATE", "StoredColumn", "find_read_problems", "list_reads"]

COLUMNS = {
    name: "sessions" if name in ("session_state", "summary", "metrics") else "runs"
    for name in DAMAGED
}
"""The columns with the table of each."""

EXPRESSIONS = {
    "cut": "substr({column}, 1, length({column}) / 2)",
    "text": "'no JSON'",
    "number": "'7'",
    "numbers": "'[7]'",
    "objects": "'[{{}}]'",
}
"""The ways, each as an expression of SQL."""

STATE = {"cart": ["tea"], "pages": "x" * 200}
"""The state of a session before the damage."""


class StoredColumn:
    """A column of all rows of a session, in the database of a running server."""

    def __init__(self, world: World, name: str, session_id: str) -> None:
        self._entry = world.servers[0].deployment.settings.databases[0]
        self._file = world.file
        self._name = name
        self._session_id = session_id

    async def damage(self, way: str) -> None:
        column = self._name
        table = COLUMNS[self._name]
        if column == "summary":
            await self._execute("UPDATE sessions SET summary = '{}' WHERE session_id = $1")
        expression = EXPRESSIONS[way].format(column=column)
        await self._execute(
            f"UPDATE {table} SET {column} = {expression}"
            f" WHERE session_id = $1 AND {column} IS NOT NULL"
        )

    async def read(self) -> list[str]:
        """Return the texts of the column, in the order of the runs."""
        table = COLUMNS[self._name]
        order = "seq" if table == "runs" else "session_id"
        return await self._execute(
            f"SELECT {self._name} FROM {table}"
            f" WHERE session_id = $1 AND {self._name} IS NOT NULL ORDER BY {order}"
        )

    async def _execute(self, statement: str) -> list[str]:
        if self._entry.url.startswith("postgres"):
            async with ConnectedTo(self._entry) as connection:
                rows = await connection.fetch(statement, self._session_id)
            return [str(row[0]) for row in rows]
        assert self._file is not None
        connection = sqlite3.connect(self._file, timeout=PATIENCE)
        try:
            with connection:
                found = connection.execute(statement.replace("$1", "?"), [self._session_id])
                return [str(value) for (value,) in found.fetchall()]
        finally:
            connection.close()


def list_reads(kind: str, session_id: str, run_id: str) -> Iterator[str]:
    """Yield the paths that read a session and a run of it."""
    session = f"/sessions/{session_id}"
    for view in ("full", "summary"):
        yield f"{session}?type={kind}&view={view}"
    for view in ("full", "summary", "phase", "items"):
        yield f"{session}/runs?type={kind}&view={view}"
        yield f"/runs/{run_id}?view={view}"
        yield f"/runs?session_id={session_id}&view={view}"
    yield f"/runs/{run_id}/model-calls"
    yield f"{session}/export"
    yield "/sessions"


async def find_read_problems(
    get: Callable[[str], Awaitable[Any]], paths: Iterator[str]
) -> list[str]:
    """Return the reads that answer neither with JSON nor with a clear error."""
    problems = []
    for path in paths:
        response = await get(path)
        try:
            body = json.loads(response.text)
        except ValueError:
            problems.append(f"{path}: {response.status_code} {response.text[:200]!r} is no JSON")
            continue
        if response.status_code not in (200, 503):
            problems.append(f"{path}: {response.status_code} {response.text[:200]}")
        elif response.status_code == 503 and body.get("detail") != "The database is damaged":
            problems.append(f"{path}: {response.text[:200]}")
    return problems
