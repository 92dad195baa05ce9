"""The repositories are tested on both engines, the SQLite driver on files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from agentctl.config import settings
from agentctl.store.database import Work
from agentctl.store.open import open_database
from agentctl.store.sqlite import SqliteDatabase
from tests.postgres import PostgresUnderTest, postgres_database, running_postgres
from tests.store.statements import watched

T = TypeVar("T")


class Store:
    """A database of either engine, for tests that are not asynchronous themselves."""

    def __init__(self, database: SqliteDatabase | PostgresUnderTest) -> None:
        self.database = database

    def read(self, work: Work[T]) -> T:
        unit = cast(Work[Any], watched(cast(Work[Any], work)))
        return cast(T, asyncio.run(self.database.read(unit)))

    def write(self, work: Work[T]) -> T:
        unit = cast(Work[Any], watched(cast(Work[Any], work)))
        return cast(T, asyncio.run(self.database.write(unit)))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def postgres(postgres_url: str) -> Iterator[PostgresUnderTest]:
    with postgres_database(postgres_url) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agentctl.db"


@pytest.fixture
def sqlite(path: Path) -> Iterator[SqliteDatabase]:
    database = open_database(settings.Database("main", f"sqlite:///{path}"), create=True)
    yield database
    database.close_now()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "sqlite":
        yield Store(request.getfixturevalue("sqlite"))
    else:
        database: PostgresUnderTest = request.getfixturevalue("postgres")
        asyncio.run(database.empty())
        yield Store(database)
