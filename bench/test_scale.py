"""Small runs of the code that fills and measures large databases."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentctl.store.databases import open_sqlite
from bench import scale
from tests.generated.fill import fill_database
from tests.generated.population import Population


def _rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("sessions", "runs")
        }


def _schema(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {str(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}


def test_a_filled_database_is_like_a_new_one_and_the_same_each_time(tmp_path: Path) -> None:
    first, second, new = (tmp_path / name for name in ("first.db", "second.db", "new.db"))
    for path in (first, second):
        asyncio.run(fill_database(f"sqlite:///{path}", Population(200, 3)))
    open_sqlite("main", new, create=True).close_blocking()
    rows = _rows(first)
    assert rows == _rows(second)
    assert [len(table) for table in rows.values()] == [200, 600]
    assert _schema(first) == _schema(new)
    with pytest.raises(SystemExit, match="200 sessions"):
        asyncio.run(fill_database(f"sqlite:///{first}", Population(10, 1)))
    assert _rows(first) == rows


def test_every_query_is_measured(tmp_path: Path) -> None:
    async def measured() -> list[str]:
        databases = []
        for number in (20, 60):
            path = tmp_path / f"{number}.db"
            await fill_database(f"sqlite:///{path}", Population(number, 2))
            databases.append(open_sqlite("main", path, create=False))
        lines = list(await scale.measure_lines(*databases, rounds=scale.WARM + 2, only=""))
        for database in databases:
            await database.close()
        return lines

    assert len(asyncio.run(measured())) == 2 + len(scale.build_cases())
