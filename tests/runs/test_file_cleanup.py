"""The life of files inside the database, and of their bytes in the store."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl.config.files import Files
from agentctl.config.quotas import Quotas
from agentctl.errors import QuotaExceeded, Unavailable
from agentctl.records.times import HOUR, now
from agentctl.runs.jobs.cleanup import ClockGuard, delete_expired, delete_unused_bytes
from agentctl.store.blobs import build_key, lock_folder
from agentctl.store.database import Database, Sql
from agentctl.store.databases import Databases
from agentctl.store.repositories import files, sessions
from agentctl.store.repositories.files import FileRow
from agentctl.store.uploads import Uploads
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import a_session
from tests.runs.shared_databases import SharedDatabases

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
            now(),
        )
        reservation = await database.write(files.reserve(row, Files(), Quotas()))
        await uploads.store.keep(received.path, blob)
    aged = replace(row, created_at=row.created_at - age)
    stored: FileRow = await database.write(files.create(aged, reservation))
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
    return len(await databases.system.read(files.list_checks(100, now(), now())))


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
        assert await count_checks(databases) == 1
        long_ago = (now() - 2 * HOUR) * 1_000
        os.utime(uploads.settings.folder / young.blob, ns=(long_ago, long_ago))
        await delete_unused_bytes(uploads, databases, trusted_guard())
        assert not has_bytes(uploads, young)
        assert await count_checks(databases) == 0


def build_row(user: str, size: int, at: int, name: str = "ab") -> FileRow:
    blob = build_key(user, name)
    return FileRow(
        f"{user}-{name}", user, None, None, name, "text/plain", size, name, blob, "upload", 1, at
    )


async def test_bytes_of_an_upload_that_was_cut_off_are_deleted_after_an_hour(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main = databases.system
        row = build_row("ann", 1, now())
        await main.write(files.reserve(row, Files(), Quotas()))
        old = build_row("ann", 1, now() - 2 * HOUR, "cd")
        await main.write(files.reserve(old, Files(), Quotas()))
        kept, abandoned = (uploads.settings.folder / each.blob for each in (row, old))
        received = uploads.store.incoming / "received"
        for path in (kept, abandoned, received):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        long_ago = (now() - 2 * HOUR) * 1_000
        for path in (abandoned, received):
            os.utime(path, ns=(long_ago, long_ago))
        await delete_unused_bytes(uploads, databases, ClockGuard())  # a clock that is not trusted
        assert abandoned.exists()
        await delete_unused_bytes(uploads, databases, trusted_guard())
        assert (kept.exists(), abandoned.exists(), received.exists()) == (True, False, False)
        assert await count_checks(databases) == 1


async def test_reservation_counts_until_its_bytes_are_removed(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    quotas = Quotas(bytes_per_user=100)
    async with shared.open() as databases:
        main = databases.system
        await main.write(files.reserve(build_row("ann", 60, now() - 2 * HOUR), Files(), quotas))
        further = build_row("ann", 60, now(), "cd")
        for _ in range(2):
            with pytest.raises(QuotaExceeded, match="bytes_per_user"):
                await main.write(files.reserve(further, Files(), quotas))
        await main.write(files.reserve(build_row("bob", 60, now()), Files(), quotas))
        await delete_unused_bytes(uploads, databases, trusted_guard())
        reservation = await main.write(files.reserve(further, Files(), quotas))
        assert await main.write(files.create(further, reservation)) == further


async def test_file_without_its_reservation_is_refused(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main = databases.system
        row = build_row("ann", 60, now() - 2 * HOUR)
        reservation = await main.write(files.reserve(row, Files(), Quotas()))
        await delete_unused_bytes(uploads, databases, trusted_guard())
        with pytest.raises(Unavailable, match="took too long"):
            await main.write(files.create(row, reservation))
        assert await main.read(files.get(row.file_id, EVERYONE)) is None


async def test_place_that_was_reserved_during_a_cleanup_stays(
    shared: SharedDatabases, uploads: Uploads
) -> None:
    async with shared.open() as databases:
        main = databases.system
        guard = trusted_guard()
        row = build_row("ann", 60, guard.present + 1)
        reservation = await main.write(files.reserve(row, Files(), Quotas()))
        wrong = build_row("ann", 60, guard.present + 2 * HOUR, "cd")
        await main.write(files.reserve(wrong, Files(), Quotas()))
        await delete_unused_bytes(uploads, databases, guard)
        assert await main.write(files.create(row, reservation)) == row
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


async def test_files_of_a_day_are_counted_until_the_next_one(shared: SharedDatabases) -> None:
    settings = Files(user_day_bytes=100)
    present = now()
    moment = present - present % DAY
    async with shared.open() as databases:
        main = databases.system

        async def reserve(user: str, size: int, at: int) -> None:
            await main.write(files.reserve(build_row(user, size, at), settings, Quotas()))

        await reserve("ann", 60, moment)
        with pytest.raises(QuotaExceeded, match="of files a day"):
            await reserve("ann", 41, moment + DAY - 1)
        await reserve("ann", 40, moment + DAY - 1)
        await reserve("bob", 100, moment)
        await reserve("ann", 100, moment + DAY)
        # The clock of another server is behind: the earlier day does not begin again.
        with pytest.raises(QuotaExceeded, match="of files a day"):
            await reserve("ann", 1, moment + DAY - 1)
        assert await main.write(files.delete_other_days(moment + DAY)) == 1
        with pytest.raises(QuotaExceeded, match="of files a day"):
            await reserve("ann", 1, moment + DAY)
        await delete_expired(databases)  # Today: the count of tomorrow may be one of another clock.
        assert await main.read(Sql("SELECT count(*) FROM file_days").value()) == 1


async def test_number_of_files_of_a_day_is_bounded(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAXIMUM_DAY_FILES", 2)
    async with shared.open() as databases:
        main = databases.system
        for number in range(2):
            row = build_row("ann", 1, now(), f"n{number}")
            await main.write(files.reserve(row, Files(), Quotas()))
        with pytest.raises(QuotaExceeded, match="2 files a day"):
            await main.write(files.reserve(build_row("ann", 1, now(), "n2"), Files(), Quotas()))
