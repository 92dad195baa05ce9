"""Copies of a SQLite file to PostgreSQL, during writes and after interruptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agentctl import errors
from agentctl.admin import database_copy
from agentctl.admin.databases import read_database_status
from agentctl.config.settings import Database
from agentctl.store.copying import copier, postgres, sqlite
from agentctl.store.database import Database as OpenDatabase
from agentctl.store.database import Sql
from agentctl.store.databases import open_database, open_sqlite
from agentctl.store.repositories import runs, sessions
from agentctl.store.sqlite.database import SqliteDatabase
from tests.conditions import PATIENCE
from tests.postgres import drop_schema
from tests.store.rows import a_run, a_session, an_end
from tests.store.sums import add_up

SESSIONS = 40


def quiet(text: str, done: int, total: int) -> None:
    """Ignore progress."""


async def fill(database: SqliteDatabase) -> None:
    for number in range(SESSIONS):
        name = f"s{number:03}"
        await database.write(sessions.create(a_session(name, session_name=f"Ünïcödé ☃ {name}")))
        await database.write(runs.create(a_run(f"r{number:03}", name)))
        await database.write(runs.claim(f"r{number:03}", 1, "w1", 1))
        await database.write(runs.finish(an_end(f"r{number:03}", content="x" * number)))


async def change(database: OpenDatabase) -> None:
    """Add, change and delete rows: early and late in the order of the keys."""
    await database.write(sessions.delete("s001"))
    await database.write(sessions.delete("s039"))
    await database.write(sessions.create(a_session("a-new")))
    await database.write(runs.create(a_run("a-run", "a-new")))
    await database.write(runs.claim("a-run", 1, "w1", 1))
    await database.write(runs.finish(an_end("a-run", content="new")))


@pytest.fixture
def postgres_entry(postgres_url: str) -> Iterator[Database]:
    entry = Database("new", postgres_url, search_path=f"copy_{uuid4().hex}")
    yield entry
    asyncio.run(drop_schema(entry))


@pytest.fixture
def source(tmp_path: Path) -> Database:
    return Database("main", f"sqlite:///{tmp_path / 'agentctl.db'}")


def open_file(entry: Database, *, create: bool = False) -> SqliteDatabase:
    return open_sqlite(entry.id, Path(entry.url.removeprefix("sqlite:///")), create=create)


def test_copy_has_equal_hashes_of_every_table(
    source: Database, postgres_entry: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (copier, postgres, sqlite):
        for name, value in (("BATCH_ROWS", 7), ("KEYS", 3)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)

    async def move() -> None:
        database = open_file(source, create=True)
        await fill(database)
        status = await database_copy.copy_rows(source, postgres_entry, quiet)
        assert status.stage == "copied"
        await change(database)
        assert (await database_copy.read_copy_status(source, postgres_entry)).changes > 0
        with pytest.raises(errors.Unavailable, match="not complete"):
            await open_database(postgres_entry, create=False).check()
        facts = await database_copy.finish_copy(
            source, postgres_entry, wait=0, interrupt=False, report=quiet
        )
        before = await add_up(source)
        assert before == await add_up(postgres_entry)
        assert before["sessions"].rows == SESSIONS - 1
        assert facts["to"] == f"{postgres_entry.url} (schema {postgres_entry.search_path})"
        with pytest.raises(errors.DatabaseMoved) as refused:
            await database.write(sessions.create(a_session("too-late")))
        assert (refused.value.status, database.write_failed) == (503, True)
        await database.close()
        with pytest.raises(errors.DatabaseMoved) as closed:
            open_file(source)
        assert postgres_entry.search_path in str(closed.value.cause)
        assert (await read_database_status(source)).state == "moved"
        served = open_database(postgres_entry, create=False)
        await served.check()
        await served.write(sessions.create(a_session("served")))
        await served.close()
        for wrong_source, wrong_target, refused_engine in (
            (postgres_entry, source, "is a PostgreSQL database"),
            (postgres_entry, postgres_entry, "is a PostgreSQL database"),
            (source, source, "is a SQLite file"),
        ):
            with pytest.raises(errors.UsageError, match="only from SQLite to PostgreSQL") as wrong:
                await database_copy.copy_rows(wrong_source, wrong_target, quiet)
            assert refused_engine in str(wrong.value.cause)

    asyncio.run(move())


def test_wrong_targets_are_refused_and_an_abandoned_copy_leaves_nothing(
    source: Database, postgres_entry: Database, postgres_url: str
) -> None:
    target = postgres_entry
    taken = Database("taken", postgres_url, search_path=f"taken_{uuid4().hex}")

    async def refuse() -> None:
        database = open_file(source, create=True)
        await fill(database)
        other = open_database(taken, create=True)
        await other.write(sessions.create(a_session("there")))
        await other.close()
        with pytest.raises(errors.Conflict, match="must be empty"):
            await database_copy.copy_rows(source, taken, quiet)
        assert (await read_database_status(source)).state == "ok"
        await database_copy.copy_rows(source, target, quiet)
        assert (await read_database_status(target)).state == "incomplete"
        with pytest.raises(errors.Conflict, match="Another copy"):
            await database_copy.copy_rows(source, taken, quiet)
        await database_copy.abandon_copy(source)
        await change(database)
        async with sqlite.open_source(source) as opened:
            assert await opened.read(copier.state.count_changes()) == 0
        with pytest.raises(errors.Conflict, match="under way"):
            await database_copy.abandon_copy(source)
        with pytest.raises(errors.Conflict, match="must be empty"):
            await database_copy.copy_rows(source, target, quiet)
        await database.close()

    try:
        asyncio.run(refuse())
    finally:
        asyncio.run(drop_schema(taken))


def test_finish_waits_for_live_runs_and_lets_none_start(
    source: Database, postgres_entry: Database
) -> None:
    target = postgres_entry

    async def drain() -> None:
        database = open_file(source, create=True)
        await database.write(sessions.create(a_session("s1")))
        await database.write(runs.create(a_run("r1", "s1")))
        await database.write(runs.claim("r1", 1, "w1", 1))
        with pytest.raises(errors.Conflict, match="Runs are live"):
            await database_copy.finish_copy(source, target, wait=0, interrupt=False, report=quiet)
        await database.write(runs.create(a_run("r2", "s1")))
        waiting = asyncio.create_task(
            database_copy.finish_copy(source, target, wait=60, interrupt=False, report=quiet)
        )
        created = 2

        async def start_runs() -> None:
            nonlocal created
            while True:
                await database.write(runs.create(a_run(f"x{created}", "s1")))
                created += 1
                await asyncio.sleep(0.01)

        with pytest.raises(errors.DatabaseMoved, match="no run starts"):
            await asyncio.wait_for(start_runs(), PATIENCE)
        assert not await database.write(runs.claim("r2", 1, "w1", 1))
        await database.write(runs.finish(an_end("r1", content="done")))
        await waiting
        await database.close()
        moved = await add_up(target)
        assert moved == await add_up(source)
        assert moved["runs"].rows == created

    asyncio.run(drain())


def test_finish_of_an_abandoned_copy_closes_nothing(
    source: Database, postgres_entry: Database
) -> None:
    target = postgres_entry

    async def abandon() -> None:
        database = open_file(source, create=True)
        await database.write(sessions.create(a_session("s1")))
        await database.write(runs.create(a_run("r1", "s1")))
        await database.write(runs.claim("r1", 1, "w1", 1))
        waits = asyncio.Event()

        def report(text: str, done: int, total: int) -> None:
            if text.startswith("live runs"):
                waits.set()

        finishing = asyncio.create_task(
            database_copy.finish_copy(source, target, wait=60, interrupt=False, report=report)
        )
        await asyncio.wait_for(waits.wait(), PATIENCE)
        await database_copy.abandon_copy(source)
        # As many rows as before: only their content shows the difference.
        await database.write(Sql("UPDATE runs SET status = 'COMPLETED', content = 'x'").execute())
        with pytest.raises(errors.Conflict, match="copy has ended"):
            await finishing
        await database.write(sessions.create(a_session("s2")))
        await database.close()
        assert (await read_database_status(source)).state == "ok"
        assert (await read_database_status(target)).state == "incomplete"

    asyncio.run(abandon())
