"""Blocks that each page of the lists reads: no filter, and no two filters, read without a bound."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentctl.config import settings
from tests.benchmarks import blocks
from tests.benchmarks.population import Population
from tests.benchmarks.seed import fill_database
from tests.postgres import ConnectedTo, drop_schema

pytestmark = pytest.mark.slow

SESSIONS = 20_000
RUNS = 5
"""Runs per session. A scan of an index, or of a table, reads more than the maximum."""


def check(found: list[tuple[int, blocks.Case]]) -> None:
    beyond = [f"{count:,}: {case}" for count, case in found if count > blocks.MAXIMUM_BLOCKS]
    assert not beyond, "\n".join(beyond[:20])
    assert {case.table for _, case in found} == {"runs", "sessions"}


def test_pages_of_sqlite_read_a_bounded_number_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "agentctl.db"
    asyncio.run(fill_database(f"sqlite:///{path}", Population(SESSIONS, RUNS)))
    counter = blocks.SqliteCounter(path)
    check(asyncio.run(blocks.count_all(counter, every=False)))
    counter.close()


def test_pages_of_postgresql_read_a_bounded_number_of_blocks(postgres_url: str) -> None:
    entry = settings.Database("main", postgres_url, search_path="blocks")

    async def count() -> list[tuple[int, blocks.Case]]:
        async with ConnectedTo(entry) as connection:
            await connection.execute("CREATE SCHEMA blocks")
        url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Dblocks"
        await fill_database(url, Population(SESSIONS, RUNS))
        async with ConnectedTo(entry) as connection:
            return await blocks.count_all(blocks.PostgresCounter(connection), every=False)

    try:
        check(asyncio.run(count()))
    finally:
        asyncio.run(drop_schema(entry))
