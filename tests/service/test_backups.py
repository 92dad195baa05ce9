"""Backups by the server: the schedule, failures, and several processes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentctl import errors
from agentctl.admin.doctor.databases import check_backups
from agentctl.config.settings import Database, Settings
from agentctl.config.upkeep import Backup
from agentctl.runs.jobs.backups import BackupSchedule
from agentctl.store.databases import open_sqlite
from agentctl.store.repositories import audit
from agentctl.store.sqlite.backup_folder import BackupFolder, has_same_rows
from tests.conditions import PATIENCE, wait_until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Two databases, of which a server makes backups each hour."""
    for name in ("main", "second"):
        open_sqlite(name, tmp_path / f"{name}.db", create=True).close_blocking()
    return Settings(
        backup=Backup(every="1h", folder=tmp_path / "backups"),
        databases=tuple(
            Database(name, f"sqlite:///{tmp_path}/{name}.db") for name in ("main", "second")
        ),
    )


@asynccontextmanager
async def open_schedule(
    settings: Settings, *, may_delete: bool = True
) -> AsyncIterator[BackupSchedule]:
    """Open a schedule, and make the backups that are due as the job of a server does."""
    schedule = BackupSchedule(settings)
    schedule.prepare()

    async def back_up() -> None:
        while True:
            await schedule.back_up_due(may_delete=may_delete)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(back_up())
    try:
        yield schedule
    finally:
        task.cancel()
        await asyncio.wait([task])


def list_names(settings: Settings, database_id: str = "main") -> list[str]:
    folder = BackupFolder(settings.backup.folder, database_id)
    return [backup.path.name for backup in folder.list_backups()]


def make_older(settings: Settings, hours: int) -> None:
    """Give the backups of the first database an earlier time."""
    folder = BackupFolder(settings.backup.folder, "main")
    for backup in folder.list_backups():
        older = folder.build_path(backup.taken_at - hours * 3_600).with_suffix("")
        backup.path.with_suffix(".json").rename(older.with_suffix(".json"))
        backup.path.rename(older)


async def test_each_database_has_verified_backups_at_its_schedule(settings: Settings) -> None:
    async with open_schedule(settings) as schedule:
        assert schedule.list_ages() == {}
        await wait_until(lambda: len(schedule.list_ages()) == 2)
        await wait_until(lambda: max(schedule.list_ages().values()) < 60)
        assert [len(list_names(settings, name)) for name in ("main", "second")] == [1, 1]
        (backup,) = BackupFolder(settings.backup.folder, "main").list_backups()
        assert await has_same_rows(backup)
        assert schedule.list_durations().keys() == {"main", "second"}
    make_older(settings, 1)
    async with open_schedule(settings) as schedule:
        await wait_until(lambda: len(list_names(settings)) == 2)
    # The second database was not due, and the last backup of the hour before is kept.
    assert len(list_names(settings, "second")) == 1
    assert {finding.verdict for finding in check_backups(settings)} <= {"ok", "note"}


async def test_two_processes_make_each_backup_once(settings: Settings) -> None:
    # A process may believe for some seconds that it still has the lease.
    async with open_schedule(settings), open_schedule(settings):
        await wait_until(lambda: list_names(settings) and list_names(settings, "second"))
    assert [len(list_names(settings, name)) for name in ("main", "second")] == [1, 1]


async def test_expired_backups_are_deleted_unless_the_clock_is_doubtful(settings: Settings) -> None:
    settings = replace(settings, backup=replace(settings.backup, keep=("1h all",)))
    folder = settings.backup.folder
    async with open_schedule(settings):
        await wait_until(lambda: list_names(settings))
    make_older(settings, 3)
    (expired,) = list_names(settings)
    async with open_schedule(settings, may_delete=False):
        await wait_until(lambda: len(list_names(settings)) == 2)
    make_older(settings, 1)
    async with open_schedule(settings):
        await wait_until(lambda: not (folder / expired).exists())
    assert list_names(settings)


async def test_stopped_server_keeps_the_lock_until_its_look_ends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()
    released = threading.Event()
    remove = BackupFolder.remove_unfinished

    def remove_late(folder: BackupFolder) -> None:
        started.set()
        released.wait(PATIENCE)
        remove(folder)

    monkeypatch.setattr(BackupFolder, "remove_unfinished", remove_late)
    folder = BackupFolder(settings.backup.folder, "main")
    schedule = BackupSchedule(settings)
    schedule.prepare()
    task = asyncio.create_task(schedule.back_up_due(may_delete=True))
    await wait_until(started.is_set)
    task.cancel()
    # The cancel reaches the task in this pass of the loop.
    await asyncio.sleep(0)
    with folder.locked() as is_locked:
        assert not is_locked
    released.set()
    await asyncio.wait([task])
    assert task.cancelled()
    with folder.locked() as is_locked:
        assert is_locked


async def test_failed_backup_is_reported_and_repeated(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = settings.backup.folder
    gone = settings.backup.folder.with_name("gone")
    async with open_schedule(settings) as schedule:
        folder.rename(gone)
        await wait_until(lambda: schedule.list_failures() == {"main": 1, "second": 1})
        assert "the backup of the database main failed" in caplog.text
        assert "no such file or directory; next attempt in 30 s" in caplog.text
        assert [finding.verdict for finding in check_backups(settings)] == ["wrong"]
        # The next attempt is later.
        gone.rename(folder)
        await schedule.back_up_due(may_delete=True)
        assert list_names(settings) == []
    monkeypatch.setattr("agentctl.runs.jobs.backups.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("agentctl.store.sqlite.backup_folder.SPARE_BYTES", 1 << 60)
    async with open_schedule(settings) as schedule:
        await wait_until(lambda: schedule.list_failures()["main"] > 2)
        assert "The disk has no space for the backup" in caplog.text
        assert schedule.list_ages()["main"] == float("inf")
        monkeypatch.setattr("agentctl.store.sqlite.backup_folder.SPARE_BYTES", 0)
        with caplog.at_level(logging.WARNING):
            await wait_until(lambda: "main succeed again" in caplog.text)
    assert len(list_names(settings)) == 1


async def test_stopped_server_leaves_no_file(settings: Settings, tmp_path: Path) -> None:
    database = open_sqlite("main", tmp_path / "main.db", create=False)
    for number in range(40):
        database.write_blocking(audit.append_entry(build_entry("x" * 1_000_000 + str(number))))
    database.close_blocking()
    folder = settings.backup.folder
    is_copying = False
    for _ in range(20):
        async with open_schedule(settings):
            await wait_until(lambda: list(folder.glob("main-*.db*")))
            is_copying = bool(list(folder.glob("main-*.part")))
        assert not [path.name for path in folder.iterdir() if ".new" in path.name]
        if is_copying:
            break
        # A busy machine may see the backup only when it is complete.
        for file in folder.glob("main-*"):
            file.unlink()
    assert is_copying


def build_entry(reason: str) -> audit.AuditRow:
    return audit.AuditRow(
        at=0,
        principal="p",
        via="local",
        operation="o",
        resource=None,
        outcome="allowed",
        status=None,
        reason=reason,
        request_id=None,
    )


async def test_folder_that_cannot_be_used_stops_the_start(settings: Settings) -> None:
    settings.backup.folder.write_text("a file")
    with pytest.raises(errors.InvalidConfiguration) as caught:
        BackupSchedule(settings).prepare()
    assert "backup.folder cannot be written" in caught.value.detail


async def test_folder_with_backups_of_another_database_is_refused(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    open_sqlite("main", other / "main.db", create=True).close_blocking()
    theirs = replace(settings, databases=(Database("main", f"sqlite:///{other}/main.db"),))
    folder = BackupFolder(settings.backup.folder, "main")
    async with open_schedule(settings), open_schedule(theirs) as schedule:
        # The folder is empty at the start of both servers.
        await wait_until(lambda: list_names(settings) and list_names(settings, "second"))
        make_older(settings, 48)
        before = list_names(settings)
        await wait_until(lambda: schedule.list_failures() == {"main": 1})
        assert "backups of another database with the same id" in caplog.text
        assert list_names(settings) == before
    with pytest.raises(errors.InvalidConfiguration) as caught:
        BackupSchedule(theirs).prepare()
    assert before[0] in str(caught.value.cause)
    wrong = [finding.what for finding in check_backups(theirs) if finding.verdict == "wrong"]
    assert "backup.folder has backups of another database" in wrong[0]
    # A backup in the place of its database, and a copy of the file, are the same database.
    shutil.copy(folder.path / before[0], other / "main.db")
    async with open_schedule(theirs) as schedule:
        await wait_until(lambda: len(list_names(settings)) == 2)


async def test_doctor_reports_old_and_missing_backups(settings: Settings) -> None:
    settings.backup.folder.mkdir()
    missing = [finding for finding in check_backups(settings) if finding.verdict == "wrong"]
    assert ["no backup of the database" in finding.what for finding in missing] == [True, True]
    async with open_schedule(settings):
        await wait_until(lambda: list_names(settings, "second"))
    make_older(settings, 3)
    (late,) = [finding for finding in check_backups(settings) if finding.verdict == "wrong"]
    assert "the newest backup of the database main is 3 h old" in late.what
    later = datetime.now(UTC).timestamp() + 86_400
    folder = BackupFolder(settings.backup.folder, "second")
    (backup,) = folder.list_backups()
    path = folder.build_path(int(later)).with_suffix("")
    backup.path.with_suffix(".json").rename(path.with_suffix(".json"))
    backup.path.rename(path)
    wrong = [finding.what for finding in check_backups(settings) if finding.verdict == "wrong"]
    assert any("second has a time in the future" in what for what in wrong)
