"""Blocks that each page of the lists reads: no filter, and no two filters, read without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from agentctl.admin.doctor.runs import NEWEST_RUNS
from agentctl.admin.runs_doctor.find import MAXIMUM_WAITING, PAGE_SIZE
from agentctl.config import settings
from agentctl.interface.requests.administration import AuditFilter
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.store import compared, migrating
from agentctl.store.listing import Slice
from agentctl.store.repositories import (
    approvals,
    audit,
    events,
    integrity,
    lists,
    memories,
    personal_data,
    queue,
    search_pages,
    usage_reads,
    workers,
)
from agentctl.store.visibility import EVERYONE
from tests.generated.fill import fill_database
from tests.generated.population import START, YEAR, Population
from tests.kit.conditions import wait_until
from tests.kit.postgres import ConnectedTo, PostgresUnderTest, drop_schema
from tests.store import blocks
from tests.store.many_rows import MANY_ROWS
from tests.store.other_pages import build_reads

SESSIONS = 20_000
RUNS = 5
"""Runs per session."""

MAXIMUM_BLOCKS = 1_000
"""Blocks of a page with a fifth of the windows: a scan of an index or a table reads more."""


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MAXIMUM_SORTED", 5)
    monkeypatch.setattr(personal_data, "SCANNED_ROWS", 40)
    monkeypatch.setattr(usage_reads, "MAXIMUM_SUMS", 4_000)
    monkeypatch.setattr(usage_reads, "MAXIMUM_TOTALS", 1_500)
    reads = {"MAXIMUM_READ": 12, "INDEXED": 120, "FIRST_WINDOW": 50, "SECOND_WINDOW": 1_000}
    for name, value in reads.items():
        monkeypatch.setattr(search_pages, name, value)
    for module in (compared, lists):
        monkeypatch.setattr(module, "MAXIMUM_READ", 50)
    monkeypatch.setattr(compared, "MAXIMUM_COMPARED", 2_000)


def check(found: list[tuple[int, blocks.Case]]) -> None:
    beyond = [f"{count:,}: {case}" for count, case in found if count > MAXIMUM_BLOCKS]
    assert not beyond, "\n".join(beyond[:20])
    assert {case.table for _, case in found} == {"runs", "sessions"}


DOCTOR = {
    "newest": integrity.list_newest(NEWEST_RUNS),
    "live": integrity.list_live(None, PAGE_SIZE),
    "inconsistent": integrity.find_inconsistent(MAXIMUM_WAITING, START + YEAR),
    "paused": integrity.list_long_paused(START + YEAR, MAXIMUM_WAITING),
    "unknown": integrity.list_unknown_calls(MAXIMUM_WAITING),
    "legs": queue.list_next_legs(MAXIMUM_WAITING),
    "overdue": queue.list_overdue(START + YEAR),
    "expired": approvals.list_due(START + YEAR),
    "events": events.has_older(START + YEAR),
    "time": workers.get_newest_time(),
}
"""The reads of a database by `agentctl doctor`, without those of its size."""

AUDIT_BLOCKS = 200
"""Blocks of a page of the audit log that no entry matches: its windows have 15,000 entries here."""

TOPIC_BLOCKS = 300
"""Blocks of a page of memories with a topic: those of 25 memories, and of 21 rows."""

BLOCKS_OF_RUN = 6
"""Blocks of a run and of its session, with their indexes."""


async def check_reads(
    counter: blocks.Counter, *, is_sqlite: bool, groups: Container[str] | None = None
) -> None:
    reads = build_reads(is_sqlite=is_sqlite, every=False)
    if groups is not None:
        reads = (read for read in reads if read.group in groups)
    found = [(await counter.count(read.build()), str(read)) for read in reads]
    beyond = [f"{count:,}: {text}" for count, text in found if count > MAXIMUM_BLOCKS]
    assert not beyond, "\n".join(beyond)


async def check_doctor(counter: blocks.Counter) -> None:
    for name, work in DOCTOR.items():
        found = await counter.count(work)
        bound = NEWEST_RUNS * BLOCKS_OF_RUN if name == "newest" else blocks.MAXIMUM_BLOCKS
        assert found <= bound, (name, found)


_ALL_VISIBLE = """
SELECT bool_and(relallvisible = relpages) FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
"""


async def vacuum(connection: asyncpg.Connection[Any]) -> None:
    """Vacuum all tables until each row is visible to every transaction.

    Until then an index-only scan seems to cost more than a scan of the table. A transaction of
    another test, in another schema, may still be open that is older than the rows.
    """

    async def vacuum_once() -> Any:
        await connection.execute("VACUUM ANALYZE")
        return await connection.fetchval(_ALL_VISIBLE)

    await wait_until(vacuum_once)


async def count_lists(connection: asyncpg.Connection[Any]) -> list[tuple[int, blocks.Case]]:
    """Return the blocks of all pages of runs and sessions, after a check of their plans."""
    counter = blocks.PostgresCounter(connection)
    found = await blocks.count_all(counter, every=False)
    # With 100,000 runs every scan of a table costs more than its indexes.
    assert not counter.scanned
    return found


async def check_late_names(connection: asyncpg.Connection[Any], counter: blocks.Counter) -> None:
    """Check a page for a frequent beginning of names that no row near that of the table has."""
    part = {"sort": "created_at", "after": blocks.MIDDLE, "total": (5, True)}
    page = blocks.Case("sessions", {"session_name": "q"}, EVERYONE, part)
    in_order = await counter.count(page.query())
    late = "(lower(session_name) LIKE 'q%'), md5(session_id)"
    await connection.execute(f"CREATE INDEX late ON sessions ({late})")
    await connection.execute("CLUSTER sessions USING late; ANALYZE sessions")
    found = await counter.count(page.query())
    assert found < in_order + 200, (found, in_order)


async def check_frequent_topic(
    connection: asyncpg.Connection[Any], counter: blocks.Counter
) -> None:
    """Check a page of a topic of many memories: only those that are compared are looked up."""
    numbers = "FROM generate_series(1, 50000) AS number"
    await connection.execute(
        "INSERT INTO memories (memory_id, user_id, created_at, updated_at, topics, memory)"
        f" SELECT 'memory ' || number, 'user', number, number, '[]', '' {numbers};"
        "INSERT INTO memory_terms (memory_id, user_id, updated_at, term)"
        f" SELECT 'memory ' || number, 'user', number, 'topic:food' {numbers};"
        "ANALYZE memories; ANALYZE memory_terms"
    )
    page = memories.list_page(MemoryFilter(topics=("food",)), EVERYONE, Slice())
    assert await counter.count(page) < TOPIC_BLOCKS


SCANNED = {
    ("halts", "halts"),
    ("accounts", "service_accounts"),
    ("data of a user", "halts"),
    ("data of a user", "service_accounts"),
    ("webhooks", "webhook_deliveries"),
}
"""The tables that the reads of a group may read from their first row on: an operator creates some
hundreds of halts and accounts. Deliveries are counted by their state, and are at most 100,000."""


def test_no_other_read_of_postgresql_scans_a_table(postgres: PostgresUnderTest) -> None:
    async def find_scans() -> list[str]:
        found = []
        async with postgres.connected() as connection:
            await connection.execute(MANY_ROWS)
            await vacuum(connection)
            for read in build_reads(is_sqlite=False, every=False):
                counter = blocks.PostgresCounter(connection)
                await counter.count(read.build())
                for table, sql in counter.scanned.items():
                    if (read.group, table) not in SCANNED:
                        found.append(f"{read}: {table}: {sql}")
        return found

    try:
        scans = asyncio.run(find_scans())
    finally:
        postgres.runner.run(postgres.empty())
    assert not scans, "\n".join(scans)


def test_pages_of_sqlite_read_a_bounded_number_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "agentctl.db"
    population = Population(SESSIONS, RUNS)
    asyncio.run(fill_database(f"sqlite:///{path}", population, related=True))
    counter = blocks.SqliteCounter(path)
    check(asyncio.run(blocks.count_all(counter, every=False)))
    asyncio.run(check_doctor(counter))
    asyncio.run(check_reads(counter, is_sqlite=True))
    counter.close()


def test_each_search_of_sqlite_looks_up_its_words_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_pages, "MAXIMUM_READ", 40)
    path = tmp_path / "agentctl.db"
    asyncio.run(fill_database(f"sqlite:///{path}", Population(SESSIONS, 0), related=True))
    counter = blocks.SqliteCounter(path)
    asyncio.run(check_reads(counter, is_sqlite=True, groups={"search"}))
    counter.close()


def test_pages_of_postgresql_read_a_bounded_number_of_blocks(postgres_url: str) -> None:
    entry = settings.Database("main", postgres_url, search_path="blocks")

    async def count() -> list[tuple[int, blocks.Case]]:
        async with ConnectedTo(entry) as connection:
            await connection.execute("CREATE SCHEMA blocks")
        url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Dblocks"
        await fill_database(url, Population(SESSIONS, RUNS), related=True)
        async with ConnectedTo(entry) as connection:
            await vacuum(connection)
            counter = blocks.PostgresCounter(connection)
            await check_doctor(counter)
            for table in ("runs", "sessions"):
                plan = await connection.fetch(f"EXPLAIN {migrating._COUNT.format(table)}")
                assert f"{table}_by_created" in str(plan)
            await check_reads(counter, is_sqlite=False)
            unknown = AuditFilter(principal="absent", since=START + YEAR // 2)
            assert await counter.count(audit.list_page(unknown)) < AUDIT_BLOCKS
            found = await count_lists(connection)
            await check_late_names(connection, counter)
            await check_frequent_topic(connection, counter)
            return found

    try:
        check(asyncio.run(count()))
    finally:
        asyncio.run(drop_schema(entry))
