"""The folder of the backups that servers make: names, list, unfinished files, deletion by age.

A backup is a file `ID-20261123T094500Z.db` with the time of its state in UTC, and a file with its
facts (`.json`) that was written when the copy had been checked. Only such pairs are listed as
verified, and only they are ever deleted. The facts are there before the backup gets its name, by
one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from agentctl import errors
from agentctl.config.upkeep import KeepRule
from agentctl.light_dataclass import dataclass
from agentctl.records.text import format_bytes
from agentctl.records.times import format_rfc3339
from agentctl.store.blobs import flush, lock_file
from agentctl.store.sqlite.backup import FinishedBackup, hash_rows, is_damaged
from agentctl.store.threads import call_in_thread

_TIME = "%Y%m%dT%H%M%SZ"
_STAMP = r"(\d{8}T\d{6}Z)"
_STAMPED = re.compile(rf"-{_STAMP}\Z")

_BUCKETS = {"hourly": "%Y%m%d%H", "daily": "%Y%m%d", "weekly": "%G%V", "monthly": "%Y%m"}
"""The formats of times in which the times of one period are equal; weeks as in ISO 8601."""

SPARE_BYTES = 64 << 20
"""Bytes that are left free on the disk of the backups, in addition to the copy."""


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """A file with the name of a backup.

    Attributes:
        taken_at: the time in its name, in seconds UTC.
        facts: written when the copy had been checked: `taken_at`, `database_created_at`, `bytes`,
            `schema`, `sessions`, `runs`, `rows`, `sha256`. None if that is missing or of another
            file.
    """

    path: Path
    taken_at: int
    bytes: int
    facts: dict[str, Any] | None

    @property
    def is_verified(self) -> bool:
        """True if the copy was checked when it was made, and has not changed its size since."""
        return self.facts is not None


class BackupFolder:
    """The backups of one database. Methods raise OSError if the folder cannot be used.

    Args:
        path: the folder, with the backups of any number of databases.
        database_id: the id, with which the names begin.
    """

    def __init__(self, path: Path, database_id: str) -> None:
        self.path = path
        self._id = database_id
        name = re.escape(database_id)
        self._name = re.compile(rf"{name}-{_STAMP}\.db")
        self._facts_name = re.compile(rf"({name}-{_STAMP})\.json")
        self._unfinished = re.compile(rf"{name}-{_STAMP}\.(db\.new(\.part(-\w+)?)?|json\.new)")

    def list_backups(self) -> list[StoredBackup]:
        """Return the backups, newest first; none if there is no folder."""
        found = []
        try:
            paths = list(self.path.iterdir())
        except FileNotFoundError:
            return []
        for path in paths:
            if match := self._name.fullmatch(path.name):
                with contextlib.suppress(ValueError, FileNotFoundError):
                    found.append(self._read(path, match[1]))
        return sorted(found, key=lambda backup: backup.taken_at, reverse=True)

    def _read(self, path: Path, stamp: str) -> StoredBackup:
        at = datetime.strptime(stamp, _TIME).replace(tzinfo=UTC)
        size = path.stat().st_size
        facts = read_facts(path)
        if facts is not None and facts["bytes"] != size:
            facts = None
        return StoredBackup(path, int(at.timestamp()), size, facts)

    def find_latest(self, at: int | None = None) -> StoredBackup | None:
        """Return the newest verified backup, if there is one.

        Args:
            at: a time in seconds; later backups are left out, since their clock was ahead.
        """
        backups = (each for each in self.list_backups() if at is None or each.taken_at <= at)
        return next((backup for backup in backups if backup.is_verified), None)

    def check_owner(self, created_at: int) -> None:
        """Check that no verified backup is one of another database with the same id.

        Raises:
            InvalidConfiguration: there is one: another deployment uses the folder, or a new
                database is in the place of a former one.
        """
        ours = format_rfc3339(created_at)
        for backup in self.list_backups():
            theirs = ours if backup.facts is None else backup.facts.get("database_created_at", ours)
            if theirs != ours:
                raise errors.InvalidConfiguration(
                    "backup.folder has backups of another database with the same id",
                    cause=f"{backup.path} is of a database that was created at {theirs}, and the"
                    f" database {self._id} was created at {ours}",
                    hint="name a folder of this deployment alone, or move those backups to another"
                    " one if this database takes their place",
                )

    def locked(self) -> AbstractContextManager[bool]:
        """Lock the backups of the database while a block lasts.

        The value is False if another process has the lock.
        """
        return lock_file(self.path / f"{self._id}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove_unfinished(self) -> None:
        """Remove the unfinished files of a killed server. The caller has the lock."""
        names = {path.name for path in self.path.iterdir()}
        for name in names:
            facts = self._facts_name.fullmatch(name)
            path = self.path / name
            is_alone = facts is not None and f"{facts[1]}.db" not in names
            if self._unfinished.fullmatch(name) or (is_alone and read_facts(path) is not None):
                path.unlink(missing_ok=True)

    def check_space(self, needed: int) -> None:
        """Check that a copy fits on the disk.

        Args:
            needed: the size of the database in bytes.

        Raises:
            Unavailable: there is too little space.
        """
        free = shutil.disk_usage(self.path).free
        if free < needed + SPARE_BYTES:
            raise errors.Unavailable(
                "The disk has no space for the backup",
                cause=f"{format_bytes(free)} are free in {self.path}, and the database has"
                f" {format_bytes(needed)}",
                hint="free some space, or keep fewer backups: keep in [backup]",
            )

    def build_path(self, at: int) -> Path:
        """Return the path of a backup that is not complete yet: `publish` gives it its name."""
        return self.path / f"{self._id}-{datetime.fromtimestamp(at, UTC).strftime(_TIME)}.db.new"

    def publish(self, backup: FinishedBackup) -> Path:
        """Store the facts of a checked copy, and give it its name. Return its path."""
        path = backup.path.with_suffix("")
        if path.exists():
            raise FileExistsError(f"{path} exists")
        facts = _facts_path(path)
        new = facts.with_name(f"{facts.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(backup.describe(), file)
        flush(new)
        new.replace(facts)
        backup.path.rename(path)
        flush(self.path)
        return path

    def delete_expired(self, rules: Sequence[KeepRule], at: int) -> list[Path]:
        """Delete the backups that no rule keeps; return them. The caller has the lock."""
        expired = [backup.path for backup in list_expired(self.list_backups(), rules, at)]
        for path in expired:
            path.unlink(missing_ok=True)
            _facts_path(path).unlink(missing_ok=True)
        return expired


def list_expired(
    backups: Sequence[StoredBackup], rules: Sequence[KeepRule], at: int
) -> list[StoredBackup]:
    """Return the verified backups that no rule keeps.

    A rule keeps the last backup of each of its periods. The newest backup is always kept, and so
    are those with a later time: the clock was ahead then, or has been set back.

    Args:
        backups: newest first.
        at: the present time in seconds.
    """
    verified = [backup for backup in backups if backup.is_verified]
    kept = {backup.path for backup in verified if backup.taken_at > at}
    past = [backup for backup in verified if backup.taken_at <= at]
    kept |= {backup.path for backup in past[:1]}
    for rule in rules:
        seen = set[str]()
        for backup in past:
            if at - backup.taken_at > rule.seconds:
                break
            moment = datetime.fromtimestamp(backup.taken_at, UTC)
            bucket = moment.strftime(_BUCKETS.get(rule.period, _TIME))
            if bucket not in seen:
                seen.add(bucket)
                kept.add(backup.path)
    return [backup for backup in verified if backup.path not in kept]


async def has_same_rows(backup: StoredBackup) -> bool:
    """Read a verified backup completely. Return True if it has the rows that it was made with.

    No file is created next to it.
    """

    def read(sha256: str) -> bool:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        uri = f"file:{quote(str(backup.path))}?immutable=1"
        try:
            with contextlib.closing(apsw.Connection(uri, flags=flags)) as connection:
                rows = None if is_damaged(connection) else hash_rows(connection, lambda _: None)
        except apsw.Error:
            return False
        return rows is not None and rows[1] == sha256

    return backup.facts is not None and await call_in_thread(read, backup.facts["sha256"])


def read_facts(backup: Path) -> dict[str, Any] | None:
    """Return the facts that a server has written about a backup, or None if there are none."""
    if not _STAMPED.search(backup.stem):
        return None
    try:
        facts = json.loads(_facts_path(backup).read_bytes())
    except (OSError, ValueError):
        return None
    is_whole = isinstance(facts, dict) and isinstance(facts.get("bytes"), int)
    return facts if is_whole and isinstance(facts.get("sha256"), str) else None


def _facts_path(backup: Path) -> Path:
    return backup.with_suffix(".json")
