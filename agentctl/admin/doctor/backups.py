"""Checks of the backups that a server makes: the folder, the age of the newest one, the space."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator

from agentctl.admin.doctor.files import suggest_write_access
from agentctl.admin.doctor.finding import Finding, note, ok, wrong
from agentctl.config.databases import sqlite_path
from agentctl.config.settings import Database, Settings
from agentctl.errors import InvalidConfiguration, Unavailable
from agentctl.records.text import format_bytes
from agentctl.records.times import format_span
from agentctl.store.sqlite.backup import read_creation_time
from agentctl.store.sqlite.backup_folder import SPARE_BYTES, BackupFolder
from agentctl.store.sqlite.file import get_file_size

_CHECK = "backups"

LATE_SECONDS = 300
"""Time after which a missing backup is a problem, in addition to twice `backup.every`."""


def check_backups(settings: Settings) -> Iterator[Finding]:
    """Check the folder of the backups and the newest one of each database."""
    folder = settings.backup.folder
    if not folder.is_dir():
        text = f"there is no folder {folder}"
        yield wrong(
            _CHECK, text, f"agentctl serve creates it, or: mkdir {shlex.quote(str(folder))}"
        )
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        remedy = suggest_write_access(folder, "u+rwx")
        yield wrong(_CHECK, f"the folder {folder} cannot be written", remedy)
        return
    for entry in settings.databases:
        if settings.backup.includes(entry.id):
            yield from _check_database(settings, entry)


def _check_database(settings: Settings, entry: Database) -> Iterator[Finding]:
    table, source = settings.backup, sqlite_path(entry.url)
    folder = BackupFolder(table.folder, entry.id)
    latest = folder.find_latest()
    try:
        folder.check_owner(read_creation_time(source))
    except InvalidConfiguration as error:
        yield wrong(_CHECK, f"{error.detail}: {error.cause}", error.hint or "")
    except Unavailable:
        pass  # another check reports the database
    log = "the log of the server names the reason: agentctl.backup"
    if latest is None:
        text = f"there is no backup of the database {entry.id} in {table.folder}"
        yield wrong(_CHECK, text, f"start the server; {log}")
    else:
        age = time.time() - latest.taken_at
        text = f"the newest backup of the database {entry.id} is {format_span(age)} old"
        if age > 2 * table.seconds + LATE_SECONDS:
            remedy = f"a running server writes one every {table.every}; {log}"
            yield wrong(_CHECK, text, remedy)
        elif age < -LATE_SECONDS:
            text = f"the newest backup of the database {entry.id} has a time in the future"
            yield wrong(_CHECK, text, "set the clock: timedatectl set-ntp true")
        else:
            yield ok(_CHECK, f"{text}: {latest.path.name}, {format_bytes(latest.bytes)}")
    free, size = shutil.disk_usage(table.folder).free, get_file_size(source)
    if free < size + SPARE_BYTES:
        text = f"{format_bytes(free)} are free in {table.folder}, too few for the next backup"
        yield wrong(_CHECK, text, "free some space, or keep fewer backups: keep in [backup]")
    if source.exists() and table.folder.stat().st_dev == source.stat().st_dev:
        text = f"the backups of {entry.id} are on the disk of the database, and are lost with it"
        yield note(_CHECK, text, "name a folder on another disk, or copy it to another machine")
