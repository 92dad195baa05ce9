"""The life of files inside the database, and of their bytes in the store."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl.config.upkeep import Files
from agentctl.errors import QuotaExceeded
from agentctl.records.times import HOUR, now
from agentctl.runs.jobs.cleanup import ClockGuard, delete_expired, delete_unused_bytes
from agentctl.store.blobs import build_key, lock_folder
from agentctl.store.database import Database, Sql
from agentctl.store.databases import Databases
from agentctl.store.repositories import files, sessions
from agentctl.store.repositories.files import FileRow
from agentctl.store.uploads import Uploads
from agentctl.store.visibility import EVERYONE
from tests.runs.shared_databases import SharedDatabases
from tests.store.rows import a_session

PNG = b"\x89PNG\r\n\x1a\n"
DAY = 24 * HOUR


def trusted_guard() -> ClockGuard:
    guard = ClockGuard()
    guard.compare(now())
    return guard


async def store_file(
    uploads: Uploads, database: Database, name: str, *, session_id: str | None = None, age: int = 0
) -> FileRow:
    """Store a file as an upload does, with bytes of its name and of an age in microseconds."""

    async def pieces() -> Any:
        yield PNG + name.encode()

    async with uploads.receive(pieces(), name, "", "ann") as received:
        blob = build_key("ann", received.sha256)
        await database.write(files.begin("ann", received.size, blob, now(), 1 << 30))
        await uploads.store.keep(received.path, blob)
    row = FileRow(
        f"{database.id}-{name}-{session_id}",
        "ann",
        session_id,
        None,
        name,
        received.media_type,
        received.size,
        received.sha256,
        blob,
        "upload",
        1,
        now() - age,
    )
    stored: FileRow = await database.write(files.create(row, 1 << 30))
    if age:
        path = uploads.settings.folder / blob
        os.utime(path, ns=(stored.created_at * 1_000, stored.created_at * 1_000))
    return stored


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(Files(folder=tmp_path / "files"))


def has_bytes(uploads: Uploads, row: FileRow) -> bool:
    return (uploads.settings.folder / row.blob).exists()


async def count_checks(databases: Databases) -> int:
    return len(await databases.system.read(files.list_checks(100)))


async def test_bytes_stay_while_a_backup_is_under_way(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        row = await store_file(uploads, databases.system, "old", age=3 * HOUR)
        await databases.system.write(files.delete(row.file_id))
        with lock_folder(uploads.settings.folder):
            await delete_unused_bytes(uploads, databases, trusted_guard())
            assert has_bytes(uploads, row)
        await delete_unused_bytes(uploads, databases, trusted_guard())
        assert not has_bytes(uploads, row)


async def test_file_without_a_session_ends_after_a_day(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main = databases.system
        await main.write(sessions.create(a_session("s1")))
        old = await store_file(uploads, main, "old", age=25 * HOUR)
        new = await store_file(uploads, main, "new", age=23 * HOUR)
        bound = await store_file(uploads, main, "bound", session_id="s1", age=25 * HOUR)
        await delete_expired(databases)
        await delete_unused_bytes(uploads, databases, trusted_guard())
        found = [await main.read(files.get(row.file_id, EVERYONE)) for row in (old, new, bound)]
        assert found == [None, new, bound]
        assert [has_bytes(uploads, row) for row in (old, new, bound)] == [False, True, True]
        assert await count_checks(databases) == 0


async def test_bytes_follow_a_session_unless_another_file_has_them(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main, second = databases.values()
        for name in ("s1", "s2"):
            await main.write(sessions.create(a_session(name)))
        alone = await store_file(uploads, main, "alone", session_id="s1", age=2 * HOUR)
        shared_one = await store_file(uploads, main, "both", session_id="s1", age=2 * HOUR)
        await store_file(uploads, main, "both", session_id="s2", age=2 * HOUR)
        elsewhere = await store_file(uploads, main, "elsewhere", session_id="s1", age=2 * HOUR)
        await store_file(uploads, second, "elsewhere", age=2 * HOUR)
        young = await store_file(uploads, main, "young", session_id="s1")
        await main.write(sessions.delete("s1"))
        assert await main.read(files.get(alone.file_id, EVERYONE)) is None
        await delete_unused_bytes(uploads, databases, trusted_guard())
        rows = (alone, shared_one, elsewhere, young)
        assert [has_bytes(uploads, row) for row in rows] == [False, True, True, True]
        # The bytes of the last hour are looked for again.
        assert await count_checks(databases) == 2
        long_ago = (now() - 2 * HOUR) * 1_000
        os.utime(uploads.settings.folder / young.blob, ns=(long_ago, long_ago))
        await delete_unused_bytes(uploads, databases, trusted_guard())
        assert not has_bytes(uploads, young)
        assert await count_checks(databases) == 0


async def test_bytes_of_an_upload_that_was_cut_off_are_deleted_after_an_hour(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        await databases.system.write(files.begin("ann", 1, build_key("ann", "ab"), now(), 100))
        kept = uploads.settings.folder / build_key("ann", "ab")
        received = uploads.store.incoming / "received"
        for path in (kept, received):
            path.parent.mkdir(parents=True)
            path.write_bytes(b"x")
        await delete_unused_bytes(uploads, databases, trusted_guard())
        assert kept.exists()
        assert received.exists()
        long_ago = (now() - 2 * HOUR) * 1_000
        for path in (kept, received):
            os.utime(path, ns=(long_ago, long_ago))
        await delete_unused_bytes(uploads, databases, ClockGuard())  # a clock that is not trusted
        assert kept.exists()
        await delete_unused_bytes(uploads, databases, trusted_guard())
        assert not kept.exists()
        assert not received.exists()
        assert await count_checks(databases) == 0


async def test_upload_of_bytes_that_are_being_deleted_keeps_them(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main = databases.system
        for number in range(10):
            row = await store_file(uploads, main, f"n{number}", age=2 * HOUR)
            await main.write(files.delete(row.file_id))
            again, _ = await asyncio.gather(
                store_file(uploads, main, f"n{number}"),
                delete_unused_bytes(uploads, databases, trusted_guard()),
            )
            assert has_bytes(uploads, again)


async def test_row_and_bytes_are_refused_together_beyond_the_day(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main = databases.system
        row = await store_file(uploads, main, "first")
        again = replace(row, file_id="again")
        with pytest.raises(QuotaExceeded, match="of files a day"):
            await main.write(files.create(again, 2 * row.size - 1))
        assert await main.read(files.get("again", EVERYONE)) is None
        size = await main.read(Sql("SELECT sum(size) FROM files").value())
        with pytest.raises(QuotaExceeded, match="of files a day"):
            await main.write(files.begin("ann", 1, "key", now(), size))
        await main.write(files.begin("ann", 1, "key", now() + DAY, size))
        await main.write(files.begin("bob", size, "key", now(), size))
