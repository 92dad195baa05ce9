"""Checks of a database that `agentctl doctor` and a server make: schema, free space, backups.

They read files and may block: a server calls them in a thread.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from agentctl.config.databases import sqlite_path
from agentctl.config.settings import Database, Settings
from agentctl.errors import InvalidConfiguration, Unavailable
from agentctl.records.system import Finding, note, ok, wrong
from agentctl.records.text import format_bytes
from agentctl.records.times import format_span
from agentctl.store.schema import SCHEMA_VERSION, StoredVersion, describe_newer
from agentctl.store.sqlite.backup import read_creation_time
from agentctl.store.sqlite.backup_folder import SPARE_BYTES, BackupFolder
from agentctl.store.sqlite.connection import get_file_size

_CHECK = "backups"

_LEAST_FREE = 100_000_000
_LITTLE_FREE = 1_000_000_000

LATE_SECONDS = 300
"""Time after which a missing backup is a problem, in addition to twice `backup.every`."""


def check_schema(check: str, where: str, version: StoredVersion | None) -> Iterator[Finding]:
    """Describe the schema of a database that this version works with."""
    if version is not None and version.is_newer:
        remedy = "upgrade this installation; until then the older version works, too"
        yield note(check, describe_newer(version), remedy)
    else:
        yield ok(check, f"{where} is a database of agentctl, schema {SCHEMA_VERSION}")
    if version is not None and not version.allows_text_rows:
        text = "its upgrade is not finished: streams are stored as earlier versions read them"
        yield note(check, text, "if you do not need the way back: agentctl db migrate --finish")


def check_space(check: str, folder: Path) -> Finding:
    """Check that the disk of a database has free space."""
    free = shutil.disk_usage(folder).free
    text, remedy = f"{format_bytes(free)} are free on its disk", "free some space"
    if free < _LEAST_FREE:
        return wrong(check, text, remedy)
    return note(check, text, remedy) if free < _LITTLE_FREE else ok(check, text)


def check_backups_of(settings: Settings, entry: Database) -> Iterator[Finding]:
    """Check the newest backup of a database, and the space for the next one."""
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
