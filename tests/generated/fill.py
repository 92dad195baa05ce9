"""Fill an empty database with generated sessions and runs.

A missing file and missing tables are created; a database with sessions is rejected. The same
numbers give the same rows.

Rows are written directly into the tables, without indexes, which are built at the end. Until then
the database has no schema version, so that no server opens it; an unfinished one is to be deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agentctl.config import settings
from agentctl.records.times import now
from agentctl.store.databases import open_database
from agentctl.store.schema import load_migrations
from tests.generated.population import RUN_COLUMNS, SESSION_COLUMNS, Population
from tests.generated.related import RELATED, Related, group_rows

__all__ = ["fill_database"]

_APPLIED = "INSERT INTO schema_version (version, applied_at) VALUES"
_SQLITE = "sqlite:///"
_COLUMNS = {"sessions": SESSION_COLUMNS, "runs": RUN_COLUMNS, **RELATED}
_FILLED = tuple(_COLUMNS)
_TABLES = "(" + ", ".join(f"'{table}'" for table in _FILLED) + ")"
CACHE_KB = 1_500_000


class _Target(Protocol):
    """A database to fill."""

    async def begin(self) -> list[str]:
        """Create the tables, drop indexes and constraints, and return the DDL to create them again.

        Raises:
            SystemExit: the database has sessions.
        """
        ...

    async def add(self, table: str, rows: list[Any]) -> None: ...

    async def run(self, sql: str) -> None: ...

    async def end(self) -> None: ...


async def _create_schema(url: str) -> None:
    """Create the file or the tables if they do not exist."""
    database = open_database(settings.Database("main", url), create=True)
    await database.check()
    await database.close()


class _Sqlite:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def begin(self) -> list[str]:
        import apsw

        await _create_schema(f"{_SQLITE}{self._path}")
        self._connection = apsw.Connection(str(self._path))
        rows = self._connection.execute("SELECT count(*) FROM sessions").fetchall()
        if rows[0][0]:
            self._connection.close()
            raise SystemExit(f"{self._path} holds {rows[0][0]:,} sessions: name an empty database")
        for name, value in (
            ("journal_mode", "OFF"),
            ("synchronous", "OFF"),
            ("cache_size", -CACHE_KB),
            ("threads", 1),
        ):
            self._connection.pragma(name, value)
        await self.run("DELETE FROM schema_version")
        return self._without_indexes()

    def _without_indexes(self) -> list[str]:
        found = self._connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            f" AND tbl_name IN {_TABLES}"
        ).fetchall()
        # The figures of the planner are removed with the indexes.
        self._figures = self._connection.execute("SELECT * FROM sqlite_stat1").fetchall()
        for name, _ in found:
            self._connection.execute(f"DROP INDEX {name}")
        return [str(sql) for _, sql in found]

    async def add(self, table: str, rows: list[Any]) -> None:
        columns = _COLUMNS[table]
        marks = ", ".join("?" * len(columns))
        with self._connection:
            self._connection.executemany(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows
            )

    async def run(self, sql: str) -> None:
        self._connection.execute(sql).fetchall()

    async def end(self) -> None:
        await self.run("DELETE FROM sqlite_stat1")
        self._connection.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", self._figures)
        await self.run("ANALYZE sqlite_schema")
        for migration in load_migrations("sqlite"):
            await self.run(f"{_APPLIED} ({migration.number}, {now()})")
        self._connection.pragma("journal_mode", "WAL")
        self._connection.close()


class _Postgres:
    def __init__(self, url: str) -> None:
        self._url = url

    async def begin(self) -> list[str]:
        import asyncpg

        await _create_schema(self._url)
        self._connection: Any = await asyncpg.connect(self._url, command_timeout=3_600)
        count = await self._connection.fetchval("SELECT count(*) FROM sessions")
        if count:
            await self._connection.close()
            raise SystemExit(f"The database holds {count:,} sessions: name an empty one")
        await self.run("SET synchronous_commit = off")
        await self.run("SET maintenance_work_mem = '1GB'")
        await self.run("DELETE FROM schema_version")
        return await self._without_indexes()

    async def _without_indexes(self) -> list[str]:
        """Drop constraints and indexes; foreign keys first, which depend on other keys."""
        constraints = await self._connection.fetch(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), contype = 'f'"
            " FROM pg_constraint WHERE contype IN ('p', 'u', 'f')"
            " AND (conrelid = ANY($1::text[]::regclass[])"
            " OR confrelid = ANY($1::text[]::regclass[]))"
            " ORDER BY contype = 'f'",
            list(_FILLED),
        )
        for table, name, *_ in reversed(constraints):
            await self.run(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        indexes = await self._connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
            f" AND tablename IN {_TABLES}"
        )
        for name, _ in indexes:
            await self.run(f"DROP INDEX {name}")
        for table in _FILLED:
            await self.run(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        keys, foreign = (
            [
                f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"
                for table, name, definition, refers in constraints
                if refers is kind
            ]
            for kind in (False, True)
        )
        return [
            *keys,
            *(built for _, built in indexes),
            *foreign,
            *(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in _FILLED),
        ]

    async def add(self, table: str, rows: list[Any]) -> None:
        await self._connection.copy_records_to_table(table, columns=_COLUMNS[table], records=rows)

    async def run(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def end(self) -> None:
        for table in _FILLED:
            await self.run(f"VACUUM (ANALYZE) {table}")
        for migration in load_migrations("postgres"):
            await self.run(f"{_APPLIED} ({migration.number}, {now()})")
        await self._connection.close()


def _choose_target(url: str) -> _Target:
    if url.startswith(_SQLITE):
        return _Sqlite(Path(url.removeprefix(_SQLITE)))
    return _Postgres(url)


async def fill_database(url: str, population: Population, *, related: bool = False) -> None:
    """Fill a database, with a progress bar on stderr if stderr is a terminal.

    Args:
        url: as in the configuration, `sqlite:////absolute/path` or `postgresql://…`.
        related: also fill the tables of `tests.generated.related`.

    Raises:
        SystemExit: the database has sessions.
    """
    target = _choose_target(url)
    others = Related(population.sessions * population.runs_per_session)
    again = await target.begin()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("sessions and runs", total=population.sessions)
        for batch in population.batches():
            await target.add("sessions", batch.sessions)
            await target.add("runs", batch.runs)
            if related:
                for table, rows in group_rows(others.build(batch)).items():
                    await target.add(table, rows)
            progress.advance(task, len(batch.sessions))
        if related:
            for table, rows in group_rows(others.build_rest()).items():
                await target.add(table, rows)
        for sql in progress.track(again, description="indexes and keys"):
            await target.run(sql)
    await target.end()
