"""Looking for damage in a database: its pages, its schema, and what must hold between its rows.

Nothing is changed, and nobody waits: all of it is read on snapshots.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from agentctl.config.databases import is_sqlite, shown_url, sqlite_path
from agentctl.config.settings import Database
from agentctl.errors import AgentctlError
from agentctl.service.checkup.finding import Finding, note, of_failure, ok, wrong
from agentctl.store import invariants
from agentctl.store.database import Work
from agentctl.store.migrating import read_long, stored_version
from agentctl.store.schema import MIGRATE, check_version

__all__ = ["At", "check_database"]

At = Callable[[str, int, int | None], None]
"""Is told what is looked at, how far that is, and of how much."""

RESTORE = "restore it from a backup (agentctl db backup makes them)"
_BY_HAND = "find out who changed it by hand; agentctl runs doctor repairs what can be repaired"

PAGE = 200
"""Sessions that are looked at in one read."""


async def check_database(entry: Database, at: At) -> AsyncIterator[Finding]:
    """Everything about the soundness of one database; it reads all of it, which may take long."""
    check = f"database {entry.id}"
    try:
        version = await stored_version(entry)
        if version is None:
            yield wrong(check, f"there is none at {shown_url(entry.url)}", MIGRATE)
            return
        if is_sqlite(entry.url):
            async for finding in _of_file(entry, check, version, at):
                yield finding
        else:
            async for finding in _of_server(entry, check, version):
                yield finding
        check_version(version, shown_url(entry.url))
        async for finding in _of_rows(entry, check, at):
            yield finding
    except AgentctlError as failure:
        yield of_failure(check, failure)


async def _of_file(entry: Database, check: str, version: int, at: At) -> AsyncIterator[Finding]:
    from agentctl.store import sqlite_look

    path = sqlite_path(entry.url)
    at("pages read", 0, None)
    damage = await sqlite_look.damage(path)
    for each in damage:
        yield wrong(check, f"it is damaged: {each}", RESTORE)
    if not damage:
        yield ok(check, "no page of it is damaged")
    dangling = await sqlite_look.dangling(path)
    for table, rows in dangling:
        yield wrong(check, f"{rows} rows of {table} refer to what is not there", _BY_HAND)
    differences = await sqlite_look.differences(path, version)
    for text, besides in differences:
        if besides:
            yield note(check, text)
        else:
            yield wrong(check, text, RESTORE)
    if not any(not besides for _, besides in differences):
        yield ok(check, f"its schema is as the migrations make it, version {version}")


async def _of_server(entry: Database, check: str, version: int) -> AsyncIterator[Finding]:
    from agentctl.store.postgres_connection import connect, public_error
    from agentctl.store.postgres_shape import differences

    try:
        connection = await connect(entry)
        try:
            found = await differences(connection, version)
        finally:
            await connection.close()
    except Exception as error:
        raise public_error(error, entry.id) from None
    for text in found:
        yield wrong(check, text, RESTORE)
    if not found:
        yield ok(check, f"its schema is as the migrations make it, version {version}")


async def _of_rows(entry: Database, check: str, at: At) -> AsyncIterator[Finding]:
    read = partial(read_long, entry)
    at("tables searched", 0, None)
    broken = await read(invariants.loose_ends())
    found = [(f"{each.what}: {', '.join(each.ids)}, ...") for each in broken]
    found += await _walked(read, at)
    for text in found:
        yield wrong(check, text, _BY_HAND)
    if not found:
        yield ok(check, "the counters of its sessions are those of their runs")


async def _walked(read: Callable[[Work[Any]], Awaitable[Any]], at: At) -> list[str]:
    """Walk all sessions; what is wrong, with how many, and one of them."""
    total = await read(invariants.count_sessions())
    last, done, found = "", 0, dict[str, list[str]]()
    while True:
        at("sessions looked at", done, total)
        page = await read(invariants.walk(last, PAGE))
        if not page.sessions:
            return [f"{what}: {len(ids)} sessions, {ids[0]} is one" for what, ids in found.items()]
        for what, session_id in page.broken:
            found.setdefault(what, []).append(session_id)
        last, done = page.last, done + page.sessions
