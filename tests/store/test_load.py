"""The reported load of a database."""

from __future__ import annotations

import asyncio
import threading

from agentctl.store.database import Load, Sql, Statement, Steps, unit
from agentctl.store.sqlite.database import READERS, RUN_READERS, SqliteDatabase
from tests.conditions import PATIENCE, wait_until

SIZE = READERS + RUN_READERS + 2


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
