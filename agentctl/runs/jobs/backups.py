"""Backups of SQLite databases by the server, at a schedule.

The process with the lease of the sweep makes them. The files in the folder say when the last one
was made, so that a restart, or another process with the lease, goes on with the schedule.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path

from agentctl import errors
from agentctl.config.databases import sqlite_path
from agentctl.config.settings import Database, Settings
from agentctl.records.times import format_span
from agentctl.store.sqlite.backup import back_up_in_child, read_creation_time
from agentctl.store.sqlite.backup_folder import BackupFolder, StoredBackup
from agentctl.store.sqlite.connection import get_file_size, get_wal_path
from agentctl.store.threads import call_in_thread, complete_in_thread

RETRY_SECONDS = 30.0
"""Pause after a failed backup; it doubles with each further failure, up to `backup.every`."""

_log = logging.getLogger("agentctl.backup")


class BackupSchedule:
    """The schedule of the backups of all databases, in one process.

    Args:
        settings: the configuration; a schedule without `backup.every` makes no backups.
    """

    def __init__(self, settings: Settings) -> None:
        self._backups = [
            _DatabaseBackups(settings, entry)
            for entry in settings.databases
            if settings.backup.includes(entry.id)
        ]

    def __bool__(self) -> bool:
        """Return True if there are backups to make."""
        return bool(self._backups)

    def prepare(self) -> None:
        """Create the folder if it is missing, and check that it can be used.

        Raises:
            InvalidConfiguration: it cannot be written, or has backups of another database.
            Unavailable: a database cannot be read.
        """
        for backups in self._backups[:1]:
            prepare_folder(backups.table.folder)
        for backups in self._backups:
            backups.check_owner()

    async def back_up_due(self, *, may_delete: bool) -> None:
        """Make the backups that are due, one after the other. Failures are logged and counted.

        A cancel removes the file of a backup under way.

        Args:
            may_delete: False if the clock is doubtful: nothing is deleted by its age then.
        """
        for backups in self._backups:
            if backups.may_be_due():
                await backups.run(may_delete)

    def list_ages(self) -> dict[str, float]:
        """Return the age in seconds of the newest backup of each database; infinite without one."""
        return {backups.entry.id: backups.age for backups in self._backups if backups.is_known}

    def list_durations(self) -> dict[str, float]:
        """Return the seconds of the last backup that this process made of each database."""
        seconds = {backups.entry.id: backups.seconds for backups in self._backups}
        return {name: taken for name, taken in seconds.items() if taken is not None}

    def list_failures(self) -> dict[str, int]:
        """Return the number of failed backups of each database in this process."""
        return {backups.entry.id: backups.failures for backups in self._backups}


class _DatabaseBackups:
    """The backups of one database.

    Attributes:
        is_known: True once the folder was read.
        failures: number of failed backups in this process.
        seconds: duration of the last backup that this process made.
    """

    def __init__(self, settings: Settings, entry: Database) -> None:
        self.table = table = settings.backup
        files = settings.files
        self._files = files.folder.absolute() if files.store == "folder" else None
        self.entry = entry
        self.is_known = False
        self.failures = 0
        self.seconds: float | None = None
        self._folder = BackupFolder(table.folder, entry.id)
        self._source = sqlite_path(entry.url)
        self._latest: StoredBackup | None = None
        self._failed_in_row = 0
        self._not_before = 0.0

    @property
    def age(self) -> float:
        """Seconds since the newest backup; infinite if there is none."""
        return float("inf") if self._latest is None else time.time() - self._latest.taken_at

    def check_owner(self) -> None:
        """Check that the folder has no backups of another database (`BackupFolder.check_owner`)."""
        self._folder.check_owner(read_creation_time(self._source))

    def may_be_due(self) -> bool:
        """Return True if a backup is due, as far as this process knows without a look."""
        return time.monotonic() >= self._not_before and self._is_due()

    def _is_due(self) -> bool:
        # A backup with a later time was made by a clock that was ahead, and does not count.
        return not 0 <= self.age < self.table.seconds

    async def run(self, may_delete: bool) -> None:
        """Back up if that is due and no other process does it; log a failure."""
        try:
            await self._run(may_delete)
        except errors.AgentctlError as error:
            self._report(": ".join(filter(None, [error.detail, error.cause])))
        except OSError as error:
            self._report(f"{self.table.folder}: {os.strerror(error.errno or 0).lower()}")
        except Exception as error:
            self._report("an internal error", error)

    async def _run(self, may_delete: bool) -> None:
        with self._folder.locked() as is_locked:
            if not is_locked:
                # Another process backs up now.
                self._not_before = time.monotonic() + RETRY_SECONDS
                return
            at = int(time.time())
            delete_expired = partial(self._folder.delete_expired, self.table.rules, at)
            # The lock lasts until the folder does not change any more, even after a cancel.
            await complete_in_thread(partial(self._look, at))
            if not self._is_due():
                return
            await call_in_thread(self.check_owner)
            if may_delete:
                await complete_in_thread(delete_expired)
            size = get_file_size(self._source) + get_file_size(get_wal_path(self._source))
            await call_in_thread(self._folder.check_space, size)
            backup = await back_up_in_child(self._source, self._folder.build_path(at), self._files)
            path = await complete_in_thread(partial(self._folder.publish, backup))
            self.seconds = backup.seconds
            _log.info("backup of the database %s: %s", self.entry.id, path)
            if missing := backup.copied.files_missing:
                text = "the backup %s lacks the bytes of %d files, such as %s"
                _log.error(text, path, missing, backup.copied.missing_file)
            if may_delete:
                await complete_in_thread(delete_expired)
            await complete_in_thread(partial(self._look, at))
            if self._failed_in_row:
                _log.warning("backups of the database %s succeed again", self.entry.id)
            self._failed_in_row = 0

    def _look(self, at: int) -> None:
        self._folder.remove_unfinished()
        self._latest = self._folder.find_latest(at)
        self.is_known = True

    def _report(self, problem: str, cause: Exception | None = None) -> None:
        pause = min(RETRY_SECONDS * 2**self._failed_in_row, self.table.seconds)
        self._failed_in_row += 1
        self.failures += 1
        self._not_before = time.monotonic() + pause
        message = "the backup of the database %s failed: %s; next attempt in %s"
        _log.error(message, self.entry.id, problem, format_span(pause), exc_info=cause)


def prepare_folder(folder: Path) -> None:
    """Create the folder of the backups if it is missing, and check that it can be written.

    Raises:
        InvalidConfiguration: it cannot.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        problem = None if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        problem = os.strerror(error.errno or 0).lower()
    if problem is not None:
        raise errors.InvalidConfiguration(
            "backup.folder cannot be written",
            cause=f"{folder}: {problem}",
            hint="create the folder for the user of the server, or name another one",
        )
