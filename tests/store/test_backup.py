"""Backups during writes, and reads that take too long."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from agentctl import errors
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.repositories import integrity, runs, sessions
from agentctl.store.sqlite.backup import back_up, hash_rows
from agentctl.store.sqlite.connection import get_wal_path, run_unit_on_snapshot
from agentctl.store.sqlite.database import SqliteDatabase
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.rows import a_run, a_session


def nobody(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


@unit
def pair(number: int) -> Steps[None]:
    yield from sessions.create(a_session(f"s{number}", metadata="x" * 1_000))
    yield from runs.create(a_run(f"r{number}", f"s{number}"))


ALL = 100_000
WRITERS = 4


class Writers:
    """Tasks that create sessions without end, and the numbers of those that they have created."""

    def __init__(self, sqlite: SqliteDatabase) -> None:
        self.acknowledged: list[int] = []
        self._sqlite = sqlite
        self._written = threading.Condition()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write within the block."""
        tasks = [asyncio.create_task(self._write(first)) for first in range(WRITERS)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    async def _write(self, first: int) -> None:
        for number in range(first, ALL, WRITERS):
            await self._sqlite.write(pair(number))
            with self._written:
                self.acknowledged.append(number)
                self._written.notify_all()

    def list_sessions(self) -> set[str]:
        return {f"s{number}" for number in self.acknowledged}

    def wait_for_a_later_write(self, what: str, done: int, total: int) -> None:
        """Wait for a write that has begun after this call; it is a report of a backup."""
        with self._written:
            # Each writer may have one write that has begun before.
            enough = len(self.acknowledged) + WRITERS + 1
            is_enough = lambda: len(self.acknowledged) >= enough  # noqa: E731
            assert self._written.wait_for(is_enough, timeout=PATIENCE)


async def test_a_backup_is_a_snapshot_with_all_acknowledged_writes(
    sqlite: SqliteDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.store.sqlite.backup.PAGES", 50)
    writers = Writers(sqlite)
    async with writers.writing():
        for number in range(4):
            await wait_until(lambda number=number: len(writers.acknowledged) >= 50 * (number + 1))
            before = writers.list_sessions()

            copy = path.with_name(f"copy{number}.db")
            made = await back_up(path, copy, writers.wait_for_a_later_write)

            found = check(made.path, made.digest)
            assert before <= found
            assert writers.list_sessions() - found
    assert not list(path.parent.glob("*.part*"))


def check(copy: Path, digest: str) -> set[str]:
    """Check a copy. Return the ids of its sessions."""
    with closing(apsw.Connection(str(copy))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = {row[0] for row in connection.execute("SELECT session_id FROM sessions")}
        for table in integrity.CHECKED_TABLES:
            page = run_unit_on_snapshot(connection, integrity.check_page(table, "", ALL))
            assert page.broken == {}
        assert page.rows == len(found)
        assert hash_rows(connection, lambda _: None)[1] == digest
        return found


def test_a_backup_has_the_index_of_a_virtual_table(sqlite: SqliteDatabase, path: Path) -> None:
    copy = path.with_name("copy.db")
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5 (text, content = '')")
        connection.execute("INSERT INTO words (rowid, text) VALUES (1, 'bold'), (2, 'brave')")
        made = asyncio.run(back_up(path, copy, nobody))
        assert made.tables["words_idx"] > 0
        assert made.digest == hash_rows(connection, lambda _: None)[1]
        connection.execute("INSERT INTO words (rowid, text) VALUES (3, 'new')")
        assert made.digest != hash_rows(connection, lambda _: None)[1]
    with closing(apsw.Connection(str(copy))) as connection:
        found = connection.execute("SELECT rowid FROM words WHERE words MATCH 'brave'").fetchall()
        assert found == [(2,)]


def test_a_cancelled_backup_leaves_no_file(
    sqlite: SqliteDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.store.sqlite.backup.PAGES", 1)
    for number in range(200):
        sqlite.write_blocking(pair(number))
    before = sorted(each.name for each in path.parent.iterdir())

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def cancel(what: str, done: int, total: int) -> None:
            loop.call_soon_threadsafe(copying.cancel)

        copying = asyncio.create_task(back_up(path, path.with_name("copy.db"), cancel))
        await asyncio.wait([copying], timeout=PATIENCE)
        assert copying.cancelled()

    asyncio.run(main())
    assert sorted(each.name for each in path.parent.iterdir()) == before


def test_the_rest_of_a_killed_backup_is_named_and_kept(sqlite: SqliteDatabase, path: Path) -> None:
    part = path.with_name("copy.db.part")
    part.write_text("left")
    with pytest.raises(errors.Unavailable) as caught:
        asyncio.run(back_up(path, path.with_name("copy.db"), nobody))
    assert f"remove {part}" in (caught.value.hint or "")
    assert part.read_text() == "left"


@unit
def endless() -> Steps[None]:
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    yield Statement(Sql("SELECT count(*) FROM sessions"))
    yield Statement(Sql(f"{sql} SELECT max(i) FROM n"))


def test_a_too_long_read_ends_and_the_log_restarts(
    sqlite: SqliteDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.store.sqlite.database.READ_SECONDS", 0.5)
    most = 0

    async def main() -> None:
        nonlocal most
        reading = asyncio.create_task(sqlite.read(endless(), size="large"))
        number = 0
        while not reading.done() or number < 200:
            number += 1
            await sqlite.write(sessions.create(a_session(f"s{number}", metadata="x" * 50_000)))
            if not reading.done():
                most = get_wal_path(path).stat().st_size
        assert isinstance(reading.exception(), errors.Unavailable)
        assert "takes too long" in str(reading.exception())
        assert await sqlite.read(integrity.count_sessions(), size="large") == number
        for more in range(200):
            await sqlite.write(sessions.create(a_session(f"t{more}", metadata="x" * 50_000)))

    asyncio.run(main())
    assert get_wal_path(path).stat().st_size < most + 10_000_000
