"""Databases for the tests of the store: both engines for repositories, files for the SQLite
driver."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from agentctl.store.database import Database, Work
from agentctl.store.databases import open_sqlite
from agentctl.store.sqlite.database import SqliteDatabase
from tests.kit.postgres import PostgresUnderTest, postgres_database
from tests.store.statements import watched

__all__ = ["Store", "path", "postgres", "sqlite", "store"]

T = TypeVar("T")


class Store:
    """A database of either engine, for tests that are not asynchronous themselves."""

    def __init__(self, database: Database, runner: asyncio.Runner | None = None) -> None:
        self.database = database
        self.runner = runner

    @property
    def is_embedded(self) -> bool:
        """True for SQLite."""
        return isinstance(self.database, SqliteDatabase)

    def run(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Run something asynchronous, on the event loop of the database if it has one."""
        return asyncio.run(awaited) if self.runner is None else self.runner.run(awaited)

    def read(self, work: Work[T]) -> T:
        unit = cast(Work[Any], watched(cast(Work[Any], work)))
        return cast(T, self.run(self.database.read(unit)))

    def write(self, work: Work[T]) -> T:
        unit = cast(Work[Any], watched(cast(Work[Any], work)))
        return cast(T, self.run(self.database.write(unit)))


@pytest.fixture(scope="session")
def postgres(postgres_url: str) -> Iterator[PostgresUnderTest]:
    with postgres_database(postgres_url) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agentctl.db"


@pytest.fixture
def sqlite(path: Path) -> Iterator[SqliteDatabase]:
    database = open_sqlite("main", path, create=True)
    yield database
    database.close_blocking()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "sqlite":
        yield Store(request.getfixturevalue("sqlite"))
    else:
        under_test: PostgresUnderTest = request.getfixturevalue("postgres")
        under_test.runner.run(under_test.empty())
        yield Store(under_test.database, under_test.runner)
