"""Databases: there and ours, sound, writable, with room to grow, on a filesystem that locks."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from agentctl.config.databases import is_sqlite, shown_url, sqlite_path
from agentctl.config.settings import Database
from agentctl.errors import AgentctlError
from agentctl.records.sizes import spoken_bytes
from agentctl.records.times import now, spoken
from agentctl.service.checkup.filesystems import NETWORK, filesystem_of
from agentctl.service.checkup.finding import Finding, note, of_failure, ok, wrong
from agentctl.service.checkup.places import check_place
from agentctl.store import sqlite_checkup
from agentctl.store.migrating import stored_version
from agentctl.store.open import open_database
from agentctl.store.probe import newest
from agentctl.store.schema import SCHEMA_VERSION

__all__ = ["check_database", "is_there"]

_LEAST_FREE = 100_000_000
_LITTLE_FREE = 1_000_000_000
_LARGE_LOG = 4 * sqlite_checkup.WAL_BYTES
"""Bytes: it shrinks to a quarter of that at every checkpoint that nobody keeps from ending."""
_AHEAD_SECONDS = 300


async def is_there(entry: Database) -> bool:
    """Whether a database can be asked more: its file is there, or its tables are."""
    if is_sqlite(entry.url):
        return sqlite_path(entry.url).exists()
    try:
        return await stored_version(entry) is not None
    except AgentctlError:
        return False


async def check_database(entry: Database, processes: int = 1) -> AsyncIterator[Finding]:
    """Everything about one database; it may take long: the whole file is read.

    Args:
        entry: the database.
        processes: how many of a server use it.
    """
    check = f"database {entry.id}"
    if not is_sqlite(entry.url):
        async for each in _of_server(entry, check, processes):
            yield each
        return
    path = sqlite_path(entry.url)
    for each in _around(check, path):
        yield each
    if not path.exists() and path.parent.is_dir():
        yield note(check, f"{path} is not there yet", "agentctl serve makes it")
        return
    try:
        yield await _opened(entry, check)
        yield ok(check, f"{path} is one of ours, schema {SCHEMA_VERSION}")
        damage = await sqlite_checkup.integrity(path)
        if damage is None:
            yield ok(check, f"nothing in its {spoken_bytes(path.stat().st_size)} is damaged")
        else:
            yield wrong(check, f"it is damaged: {damage}", "restore it from a backup")
        await asyncio.to_thread(sqlite_checkup.take_write_lock, path)
        mode = await asyncio.to_thread(sqlite_checkup.journal_mode, path)
    except AgentctlError as failure:
        yield of_failure(check, failure)
        return
    yield ok(check, "it can be written")
    if mode != "wal":
        remedy = f"sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode = WAL'"
        yield wrong(check, f"readers keep writers waiting: its journal mode is {mode}", remedy)


async def _of_server(entry: Database, check: str, processes: int) -> AsyncIterator[Finding]:
    """That it answers, has our schema, and is set up for it; `db check` looks further."""
    from agentctl.service.checkup.servers import check_server

    where = shown_url(entry.url)
    try:
        if await stored_version(entry) is None:
            remedy = "agentctl db migrate makes them, and so does agentctl serve"
            yield note(check, f"{where} has no tables yet", remedy)
            return
        yield await _opened(entry, check)
        yield ok(check, f"{where} is one of ours, schema {SCHEMA_VERSION}")
        async for each in check_server(entry, check, processes):
            yield each
    except AgentctlError as failure:
        yield of_failure(check, failure)


async def _opened(entry: Database, check: str) -> Finding:
    """Open it, which checks its schema, and hold our clock to the times in it."""
    database = open_database(entry, create=False)
    try:
        latest = await database.read(newest())
    finally:
        await database.close()
    ahead = 0.0 if latest is None else (latest - now()) / 1_000_000
    if ahead > _AHEAD_SECONDS:
        text = f"its newest record is {spoken(ahead)} ahead of the clock of this machine"
        return wrong(check, text, "set the clock: timedatectl set-ntp true")
    return ok(check, "no record of it lies ahead of the clock")


def _around(check: str, path: Path) -> Iterator[Finding]:
    """What can be said without opening it."""
    folder = path.parent
    if not folder.is_dir():
        yield wrong(check, f"there is no folder {folder}", f"mkdir {shlex.quote(str(folder))}")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"the folder {folder} cannot be written, where SQLite keeps its log"
        yield wrong(check, text, f"chmod u+wx {shlex.quote(str(folder))}, as its owner")
    yield from check_place(check, path, "the database")
    kind = filesystem_of(path)
    if kind in NETWORK:
        text = f"{path} is on a filesystem of the network ({kind}), which SQLite cannot share"
        yield wrong(check, text, "move it to a disk of this machine")
    yield _free(check, shutil.disk_usage(folder).free)
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and (size := log.stat().st_size) > _LARGE_LOG:
        text = (
            f"its write-ahead log has grown to {spoken_bytes(size)}: something reads for very long"
        )
        yield note(check, text, "restart what reads it; the log shrinks with the next checkpoint")


def _free(check: str, free: int) -> Finding:
    text, remedy = f"{spoken_bytes(free)} are free on its disk", "free some space"
    if free < _LEAST_FREE:
        return wrong(check, text, remedy)
    return note(check, text, remedy) if free < _LITTLE_FREE else ok(check, text)
