"""Checks of the databases, SQLite files and PostgreSQL servers."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from agentctl.admin.doctor.files import check_permissions, suggest_write_access
from agentctl.config.databases import display_url, is_sqlite_url, sqlite_path
from agentctl.config.settings import Database
from agentctl.errors import AgentctlError
from agentctl.records.hosts import is_loopback_host
from agentctl.records.system import Finding, from_failure, note, ok, wrong
from agentctl.records.text import format_bytes
from agentctl.records.times import format_span, now
from agentctl.service.operations.deployment import check_schema, check_space
from agentctl.store.databases import open_database
from agentctl.store.migrating import list_missing_indexes, read_version
from agentctl.store.postgres.inspect import ServerFacts, read_server_facts, receives_notifications
from agentctl.store.postgres.schema import CREATE_DATABASE, ENCODING
from agentctl.store.repositories.workers import get_newest_time
from agentctl.store.schema import MIGRATE_COMMAND
from agentctl.store.sqlite import inspect
from agentctl.store.sqlite.connection import WAL_BYTES
from agentctl.store.sqlite.inspect import NETWORK_FILESYSTEMS, detect_filesystem
from agentctl.store.threads import call_in_thread

_LARGE_LOG = 4 * WAL_BYTES
"""Bytes; a checkpoint without readers shrinks the log to a quarter of them."""

_RECORD_AHEAD_SECONDS = 300
"""Time that a record may be ahead of the clock of this machine."""

MINIMUM_VERSION = 130_000
"""PostgreSQL 13, as `server_version_num`."""

EXTRA_CONNECTIONS = 1
"""Connections of a process outside its pool, for the heartbeat and notifications."""

_CLOCK_DIFFERENCE_SECONDS = 2
"""Clocks that are synchronized over the network differ by less."""

_WRONG_CLOCK_SECONDS = 300
"""Difference of two clocks from which it is a fault."""

_CONSOLE = "as its administrator, in psql: "

PAGES_SECONDS = 3.0
"""Maximum time to read the pages of a SQLite file."""


async def database_exists(entry: Database) -> bool:
    """Return True if the file or the tables of a database exist."""
    if is_sqlite_url(entry.url):
        return sqlite_path(entry.url).exists()
    try:
        return await read_version(entry) is not None
    except AgentctlError:
        return False


async def check_database(entry: Database, processes: int = 1) -> AsyncIterator[Finding]:
    """Check a database; of a SQLite file only the pages that are read within `PAGES_SECONDS`.

    Args:
        processes: the number of processes of a server, each of which opens connections.
    """
    check = f"database {entry.id}"
    if not is_sqlite_url(entry.url):
        async for finding in _check_server(entry, check, processes):
            yield finding
        return

    path = sqlite_path(entry.url)
    for finding in _check_location(check, path):
        yield finding

    if not path.exists() and path.parent.is_dir():
        yield note(check, f"{path} does not exist yet", "agentctl serve creates it")
        return

    try:
        yield await _check_newest_record(entry, check)
        for finding in check_schema(check, str(path), await read_version(entry)):
            yield finding
        yield await _check_pages(check, path)
        await call_in_thread(inspect.try_write_lock, path)
        mode = await call_in_thread(inspect.read_journal_mode, path)
    except AgentctlError as failure:
        yield from_failure(check, failure)
        return

    yield ok(check, "it is writable")
    if mode != "wal":
        remedy = f"sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode = WAL'"
        yield wrong(check, f"its journal mode is {mode}: readers block writers", remedy)


async def _check_pages(check: str, path: Path) -> Finding:
    size = format_bytes(path.stat().st_size)
    try:
        async with asyncio.timeout(PAGES_SECONDS):
            damage = await inspect.find_damage(path, quick=True)
    except TimeoutError:
        text = f"no damage found in {format_span(PAGES_SECONDS)}, too short to read all of {size}"
        return ok(check, f"{text}; agentctl doctor --db does")
    if damage:
        return wrong(check, f"it is damaged: {damage[0]}", "restore it from a backup")
    return ok(check, f"no damage in {size}")


async def _check_server(entry: Database, check: str, processes: int) -> AsyncIterator[Finding]:
    where = display_url(entry.url)
    try:
        version = await read_version(entry)
        if version is None:
            remedy = "agentctl db migrate or agentctl serve creates them"
            yield note(check, f"{where} has no tables yet", remedy)
            return

        yield await _check_newest_record(entry, check)
        for finding in check_schema(check, where, version):
            yield finding

        missing_indexes = await list_missing_indexes(entry, version)
        if missing_indexes:
            names = ", ".join(index.name for index in missing_indexes)
            text = f"its migration is not complete, lists or writes are slower: {names}"
            yield note(check, text, f"{MIGRATE_COMMAND} completes it, unless one is at work")

        facts = await read_server_facts(entry)
        for run_check in SERVER_CHECKS:
            for finding in run_check(check, facts):
                yield finding
        needed = processes * (entry.pool_size + EXTRA_CONNECTIONS)
        for finding in _check_connections(check, facts, needed):
            yield finding
        for finding in _check_encryption(check, facts, entry):
            yield finding

        yield await _check_notifications(entry, check)
    except AgentctlError as failure:
        yield from_failure(check, failure)


async def _check_newest_record(entry: Database, check: str) -> Finding:
    """Open a database, which checks its schema, and compare its newest time with the clock."""
    database = open_database(entry, create=False)
    try:
        latest = await database.read(get_newest_time())
    finally:
        await database.close()

    ahead = 0.0 if latest is None else (latest - now()) / 1_000_000
    if ahead > _RECORD_AHEAD_SECONDS:
        text = f"its newest record is {format_span(ahead)} ahead of the clock of this machine"
        return wrong(check, text, "set the clock: timedatectl set-ntp true")
    return ok(check, "no record is ahead of the clock")


def _check_location(check: str, path: Path) -> Iterator[Finding]:
    folder = path.parent
    if not folder.is_dir():
        yield wrong(check, f"there is no folder {folder}", f"mkdir {shlex.quote(str(folder))}")
        return

    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"the folder {folder} is not writable; SQLite creates its log there"
        yield wrong(check, text, suggest_write_access(folder, "u+wx"))

    yield from check_permissions(check, path, "the database")

    kind = detect_filesystem(path)
    if kind in NETWORK_FILESYSTEMS:
        text = f"{path} is on a network filesystem ({kind}), where SQLite locks are not reliable"
        yield wrong(check, text, "move it to a local disk")

    yield check_space(check, folder)

    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LARGE_LOG:
        text = f"its write-ahead log has grown to {format_bytes(size)}: a reader blocks checkpoints"
        yield note(check, text, "restart the reader; the next checkpoint shrinks the log")


async def _check_notifications(entry: Database, check: str) -> Finding:
    if await receives_notifications(entry.at_listen_url()):
        return ok(check, "notifications between servers arrive")
    text = "notifications between servers do not arrive; followers of other servers wait longer"
    remedy = f"listen_url in [[databases]] {entry.id}, the server without the connection pooler"
    return note(check, text, remedy)


def _check_version(check: str, facts: ServerFacts) -> Iterator[Finding]:
    if facts.number < MINIMUM_VERSION:
        text = f"PostgreSQL {facts.version} is older than agentctl requires"
        yield wrong(check, text, "update it to 13 or later")
    else:
        yield ok(check, f"it responds, as PostgreSQL {facts.version}")


def _check_clock(check: str, facts: ServerFacts) -> Iterator[Finding]:
    distance = abs(facts.clock_ahead) / 1_000_000
    if distance < _CLOCK_DIFFERENCE_SECONDS:
        yield ok(check, "its clock agrees with the clock of this machine")
        return

    direction = "ahead of" if facts.clock_ahead > 0 else "behind"
    text = f"its clock is {format_span(distance)} {direction} the clock of this machine"
    remedy = "synchronize both: timedatectl set-ntp true"
    if distance >= _WRONG_CLOCK_SECONDS:
        yield wrong(check, text, remedy)
    else:
        yield note(check, text, remedy)


def _check_writable(check: str, facts: ServerFacts) -> Iterator[Finding]:
    if facts.standby:
        yield wrong(check, "it is a read-only standby", "use its primary in the url")
    elif facts.read_only:
        text = "its transactions are read-only (default_transaction_read_only)"
        yield wrong(check, text, _CONSOLE + "ALTER ROLE or ALTER DATABASE ... RESET it")
    elif facts.missing_privileges:
        text = f"its user lacks privileges: {'; '.join(facts.missing_privileges)}"
        remedy = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ... TO ..."
        yield wrong(check, text, _CONSOLE + remedy)
    else:
        yield ok(check, "it is writable")


def _check_durability(check: str, facts: ServerFacts) -> Iterator[Finding]:
    settings = {
        "fsync": (facts.fsync, "a crash of its machine can damage the data"),
        "full_page_writes": (facts.full_pages, "a crash of its machine can damage the data"),
        "synchronous_commit": (facts.synchronous, "a crash loses committed data"),
    }
    risks = {name: risk for name, (is_on, risk) in settings.items() if not is_on}
    for name, risk in risks.items():
        remedy = f"{_CONSOLE}ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
        yield wrong(check, f"{name} is off: {risk}", remedy)
    if not risks:
        yield ok(check, "committed data survives a crash")


def _check_encoding(check: str, facts: ServerFacts) -> Iterator[Finding]:
    if facts.encoding == ENCODING:
        yield ok(check, "it stores every text")
    else:
        text = f"its encoding is {facts.encoding}: it cannot store every text of a model"
        yield wrong(check, text, f"copy it into a new one: {CREATE_DATABASE} NAME")


SERVER_CHECKS = (_check_version, _check_clock, _check_writable, _check_encoding, _check_durability)


def _check_connections(check: str, facts: ServerFacts, needed: int) -> Iterator[Finding]:
    maximum = facts.connection_limit
    if facts.user_connection_limit is not None:
        maximum = min(maximum, facts.user_connection_limit)
    free = min(maximum, facts.connection_limit - facts.connections_in_use)

    remedy = "lower pool_size in [[databases]] or workers in [server], or raise max_connections"
    if needed > maximum:
        text = f"a server may open {needed} connections, but the limit is {maximum}"
        yield wrong(check, text, remedy)
    elif needed > free:
        text = f"a server may open {needed} connections, but only {free} of {maximum} are free"
        yield note(check, text, remedy)
    else:
        yield ok(check, f"a server may open {needed} connections, and {free} are free")


def _check_encryption(check: str, facts: ServerFacts, entry: Database) -> Iterator[Finding]:
    parts = urlsplit(entry.url)
    host = dict(parse_qsl(parts.query)).get("host") or parts.hostname or ""
    if not host or host.startswith("/") or is_loopback_host(host):
        return

    remedy = f'tls = "verify-full" in [[databases]] {entry.id}'
    if not facts.encrypted:
        yield wrong(check, "the connection over the network is not encrypted", remedy)
    elif not entry.tls.startswith("verify"):
        yield note(check, "the certificate of the server is not verified", remedy)
    else:
        yield ok(check, "the connection is encrypted, and the certificate is verified")
