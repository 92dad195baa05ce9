"""Copies of a SQLite file to PostgreSQL: their rows, refusals and interruptions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import apsw
import pytest

from agentctl import errors
from agentctl.admin import database_copy
from agentctl.admin.databases import read_database_status
from agentctl.config.databases import sqlite_path
from agentctl.config.settings import Database
from agentctl.records.times import now
from agentctl.store.copying import postgres, sqlite, state
from agentctl.store.copying.postgres import PostgresTarget
from agentctl.store.copying.sqlite import SqliteSource
from agentctl.store.database import Database as OpenDatabase
from agentctl.store.database import Sql
from agentctl.store.databases import open_database
from agentctl.store.repositories import runs, sessions
from agentctl.store.repositories.workers import WorkerRow, register
from tests.kit.postgres import drop_schema
from tests.kit.rows import a_run, a_session, an_end
from tests.store.sums import add_up

SESSIONS = 40

ENTRY_TEXT = "INSERT INTO audit_log (at, via, operation, outcome) VALUES (1, 'x', 'y', 'allow')"

ENTRY = Sql(ENTRY_TEXT)


class Interrupted(Exception):
    """The end of a copy at a step of the test."""


async def fill(entry: Database) -> None:
    database = open_database(entry, create=True)
    for number in range(SESSIONS):
        name = f"s{number:03}"
        await database.write(sessions.create(a_session(name, session_name=f"Ünïcödé ☃ {name}")))
        await database.write(runs.create(a_run(f"r{number:03}", name)))
        await database.write(runs.claim(f"r{number:03}", 1, "w1", 1))
        await database.write(runs.finish(an_end(f"r{number:03}", content="x" * number)))
    await database.close()


async def add_session(entry: Database, name: str) -> None:
    """Write to a database as a server would, after its checks at the start."""
    database = await open_checked(entry)
    await database.write(sessions.create(a_session(name)))
    await database.close()


async def open_checked(entry: Database) -> OpenDatabase:
    database = open_database(entry, create=False)
    await database.check()
    return database


async def copy(source: Database, target: Database) -> dict[str, object]:
    return await database_copy.copy_database(source, target, lambda *_: None)


@pytest.fixture
def target(postgres_url: str) -> Iterator[Database]:
    entry = Database("new", postgres_url, search_path=f"copy_{uuid4().hex}")
    yield entry
    asyncio.run(drop_schema(entry))


@pytest.fixture
def source(tmp_path: Path) -> Database:
    entry = Database("main", f"sqlite:///{tmp_path / 'agentctl.db'}")
    asyncio.run(fill(entry))
    return entry


def test_copy_has_equal_rows_and_closes_the_source(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres, sqlite):
        monkeypatch.setattr(module, "BATCH_ROWS", 7)

    async def move() -> None:
        before = await add_up(source)

        facts = await copy(source, target)

        assert await add_up(source) == before == await add_up(target)
        assert before["sessions"].rows == SESSIONS
        assert facts["rows"] == sum(each.rows for each in before.values())
        assert facts["to"] == f"{target.url} (schema {target.search_path})"
        with pytest.raises(errors.Unavailable, match="has moved") as closed:
            await add_session(source, "too-late")
        assert str(target.search_path) in str(closed.value.cause)
        assert (await read_database_status(source)).state == "moved"
        await add_session(target, "served")
        with pytest.raises(errors.Unavailable, match="has moved already"):
            await copy(source, target)

    asyncio.run(move())


def test_target_gives_no_number_of_a_deleted_row_again(source: Database, target: Database) -> None:
    async def move() -> None:
        database = await open_checked(source)
        await database.write(ENTRY.execute())
        await database.write(ENTRY.execute())
        newest = await database.read(Sql("SELECT max(seq) FROM audit_log").value())
        await database.write(Sql("DELETE FROM audit_log").execute())
        await database.close()

        await copy(source, target)

        moved = await open_checked(target)
        await moved.write(ENTRY.execute())
        assert await moved.read(Sql("SELECT seq FROM audit_log").value()) == newest + 1
        await moved.close()

    asyncio.run(move())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sessions SET session_name = 'other' WHERE session_id = 's007'",
        "DELETE FROM sessions WHERE session_id = 's007'",
    ],
)
def test_copy_with_another_row_is_undone(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    set_counters = PostgresTarget.set_counters

    async def set_and_change(self: PostgresTarget, counters: dict[str, int]) -> None:
        await set_counters(self, counters)
        await self.run(Sql(change).execute())

    async def move() -> None:
        before = await add_up(source)
        with monkeypatch.context() as patch:
            patch.setattr(PostgresTarget, "set_counters", set_and_change)
            with pytest.raises(errors.Unavailable, match="not equal") as differs:
                await copy(source, target)
        assert "sessions" in str(differs.value.cause)
        assert await add_up(source) == before
        await add_session(source, "later")

        await copy(source, target)

        assert (await add_up(target))["sessions"].rows == SESSIONS + 1

    asyncio.run(move())


def test_database_in_use_is_refused(source: Database, target: Database) -> None:
    async def refuse() -> None:
        serving = await open_checked(source)
        with pytest.raises(errors.Conflict, match="process works"):
            await copy(source, target)
        await serving.close()
        assert (await read_database_status(target)).state == "missing"

        waiting = open_database(target, create=True)
        await waiting.write(register(a_worker(beat=now())))
        with pytest.raises(errors.Conflict, match="server works"):
            await copy(source, target)
        assert (await read_database_status(source)).state == "ok"

        await waiting.write(Sql("DELETE FROM workers").execute())
        await waiting.close()
        await copy(source, target)

    asyncio.run(refuse())


def a_worker(*, beat: int) -> WorkerRow:
    return WorkerRow("w1", "elsewhere", "", 1, 0, beat, beat, None, None)


def test_target_with_rows_is_refused_unchanged(source: Database, target: Database) -> None:
    async def refuse() -> None:
        database = open_database(target, create=True)
        await database.write(sessions.create(a_session("there")))
        await database.close()
        before = await add_up(target)

        with pytest.raises(errors.Conflict, match="must be empty"):
            await copy(source, target)

        assert await add_up(target) == before
        await add_session(source, "later")

    asyncio.run(refuse())


async def interrupt_before_close(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End a copy when the target has all rows, and the source is not closed yet."""

    async def interrupt(self: SqliteSource) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(SqliteSource, "commit", interrupt)
        with pytest.raises(Interrupted):
            await copy(source, target)
    assert (await read_database_status(source)).state == "ok"
    assert (await read_database_status(target)).state == "incomplete"
    with pytest.raises(errors.Unavailable, match="not complete"):
        await add_session(target, "too-early")


def test_copy_continues_with_the_close_of_the_source(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def move() -> None:
        await interrupt_before_close(source, target, monkeypatch)

        await copy(source, target)

        assert await add_up(source) == await add_up(target)
        assert (await read_database_status(source)).state == "moved"
        await add_session(target, "served")

    asyncio.run(move())


def test_interrupted_copy_of_a_killed_writer_leaves_a_usable_file(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sqlite_path(source.url)
    child = os.fork()
    if child == 0:
        connection = apsw.Connection(str(file))
        connection.execute(ENTRY_TEXT)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert file.with_name(f"{file.name}-shm").exists()

    async def move() -> None:
        await interrupt_before_close(source, target, monkeypatch)

        await copy(source, target)

        assert (await add_up(target))["audit_log"].rows == 1

    asyncio.run(move())


def test_copy_does_not_continue_with_a_changed_source(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        await interrupt_before_close(source, target, monkeypatch)
        await add_session(source, "later")

        with pytest.raises(errors.Unavailable, match="not equal"):
            await copy(source, target)

        assert (await read_database_status(source)).state == "ok"
        assert (await read_database_status(target)).state == "incomplete"

    asyncio.run(refuse())


def test_target_of_another_copy_is_refused(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Database("other", f"sqlite:///{tmp_path / 'other.db'}")

    async def refuse() -> None:
        await interrupt_before_close(source, target, monkeypatch)
        await fill(other)
        with pytest.raises(errors.Conflict, match="another copy"):
            await copy(other, target)

        await copy(source, target)

        with pytest.raises(errors.Conflict, match="another copy"):
            await copy(other, target)

    asyncio.run(refuse())


def test_copy_continues_with_the_open_of_the_target(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Database("elsewhere", target.url, search_path=f"copy_{uuid4().hex}")

    def interrupt(at: int) -> None:
        raise Interrupted

    async def move() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(state, "open_target", interrupt)
            with pytest.raises(Interrupted):
                await copy(source, target)
        assert (await read_database_status(source)).state == "moved"
        assert (await read_database_status(target)).state == "incomplete"
        with pytest.raises(errors.Unavailable, match="has moved already"):
            await copy(source, elsewhere)

        await copy(source, target)

        await add_session(target, "served")

    asyncio.run(move())
