"""The reported load of a database."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentctl.store.database import Load, ReadSize, Sql, Statement, Steps, unit
from agentctl.store.sqlite import database
from agentctl.store.sqlite.database import READERS, RUN_READERS, SqliteDatabase
from tests.kit.conditions import PATIENCE, wait_until

SIZE = READERS + RUN_READERS + 2

COUNT_UP = Sql(
    "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)"
    " SELECT count(*) FROM numbers"
)
"""More instructions than between two checks of a read on the event loop."""


@unit
def held(until: threading.Event) -> Steps[None]:
    yield Statement(Sql("SELECT 1"))
    assert until.wait(PATIENCE)


def test_an_idle_database_has_no_load(sqlite: SqliteDatabase) -> None:
    assert sqlite.load() == Load("sqlite", waiting=0, in_use=0, size=SIZE)


def test_units_waiting_for_the_writer_are_counted(sqlite: SqliteDatabase) -> None:
    async def main() -> None:
        go_on = threading.Event()
        writes = [asyncio.create_task(sqlite.write(held(go_on)))]
        await wait_until(lambda: sqlite.load().in_use == 1 and sqlite.load().waiting == 0)
        writes += [asyncio.create_task(sqlite.write(held(go_on))) for _ in range(3)]
        await wait_until(lambda: sqlite.load().waiting == 3)
        # One writer takes all writes in their order: new ones delay none of these.
        assert not sqlite.is_late
        go_on.set()
        await asyncio.gather(*writes)
        assert sqlite.load() == Load("sqlite", waiting=0, in_use=0, size=SIZE)

    asyncio.run(main())


def test_large_reads_beyond_the_readers_wait(sqlite: SqliteDatabase) -> None:
    async def main() -> None:
        go_on = threading.Event()
        reads = [
            asyncio.create_task(sqlite.read(held(go_on), size="large")) for _ in range(READERS + 2)
        ]
        await wait_until(lambda: sqlite.load() == Load("sqlite", 2, READERS, SIZE))
        go_on.set()
        await asyncio.gather(*reads)
        await wait_until(lambda: sqlite.load() == Load("sqlite", 0, 0, SIZE))

    asyncio.run(main())


@pytest.mark.parametrize(("size", "readers"), [("large", READERS), ("run", RUN_READERS)])
def test_as_many_large_reads_as_readers_run_at_once(
    sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, size: ReadSize, readers: int
) -> None:
    # A read of a run begins on the event loop, and goes on in a thread if it takes long.
    monkeypatch.setattr(database, "LOOP_CHECKS", 0)
    begun = threading.Barrier(readers)

    @unit
    def meet() -> Steps[None]:
        yield Statement(COUNT_UP)
        begun.wait(PATIENCE)

    async def main() -> None:
        await asyncio.gather(*(sqlite.read(meet(), size=size) for _ in range(readers)))

    asyncio.run(main())
