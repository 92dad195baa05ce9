"""The histories of sessions that are kept in memory."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import count
from typing import Any

import pytest

from agentctl.records.sessions import SessionRow
from agentctl.service.documents import session_documents
from agentctl.service.documents.session_documents import SessionHistories
from agentctl.store.database import Database, Work
from agentctl.store.repositories import runs, sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE
from tests.kit.rows import START, a_run, a_session, an_end
from tests.store.conftest import Store, path, postgres, sqlite, store

__all__ = ["path", "postgres", "sqlite", "store"]


class CountedDatabase:
    """A database that counts the rows of its reads of histories."""

    def __init__(self, database: Database) -> None:
        self.id = database.id
        self.database = database
        self.rows: list[int] = []

    async def read(self, work: Work[Any], size: Any = "small") -> Any:
        found = await self.database.read(work, size=size)
        if isinstance(found, list):
            self.rows.append(len(found))
        return found


async def read_row(database: Database, session_id: str = "s1") -> SessionRow:
    row = await database.read(sessions.get(session_id, EVERYONE))
    assert row is not None
    return row


async def read_history(histories: SessionHistories, database: Any) -> bytes:
    row = await read_row(getattr(database, "database", database))
    return b",".join(piece for piece in await histories.read(database, row) if piece)


async def start_run(database: Database, run_id: str, session_id: str = "s1") -> None:
    await database.write(runs.create(a_run(run_id, session_id)))
    await database.write(runs.claim(run_id, 1, "w1", START))


async def end_run(database: Database, run_id: str, text: str) -> None:
    history = json.dumps([{"role": "user", "content": text}])
    await database.write(runs.finish(an_end(run_id, history=history)))


def test_kept_history_equals_the_stored_one_after_any_change(store: Store) -> None:
    """Runs end in any order, in the same process or another one, and sessions are replaced."""
    random_numbers = random.Random(7)
    names = count()
    opened = list[str]()

    async def change(database: Database, created_at: int) -> None:
        act = random_numbers.random()
        if act < 0.45:
            opened.append(f"r{next(names)}")
            await start_run(database, opened[-1])
        elif act < 0.9 and opened:
            run_id = opened.pop(random_numbers.randrange(len(opened)))
            await end_run(database, run_id, random_numbers.choice("ab"))
        elif act > 0.9:
            opened.clear()
            await database.write(sessions.delete("s1"))
            await database.write(sessions.create(a_session(now=created_at)))

    async def check() -> None:
        database = store.database
        histories = SessionHistories()
        await database.write(sessions.create(a_session()))
        for number in range(300):
            await change(database, START + number)
            if random_numbers.random() < 0.3:
                stored = await read_history(SessionHistories(), database)
                assert await read_history(histories, database) == stored

    store.run(check())


def test_second_read_gets_only_the_new_runs(store: Store) -> None:
    async def check() -> None:
        database = CountedDatabase(store.database)
        histories = SessionHistories()
        await store.database.write(sessions.create(a_session()))
        for number in range(5):
            await start_run(store.database, f"r{number}")
            await end_run(store.database, f"r{number}", "text")
        for _ in range(2):
            await read_history(histories, database)
        await start_run(store.database, "r5")
        await end_run(store.database, "r5", "new")
        assert (await read_history(histories, database)).endswith(b'"content": "new"}')
        assert database.rows == [5, 1]

    store.run(check())


def test_histories_beyond_the_bound_are_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_documents, "MAXIMUM_BYTES", 4_000)

    async def check() -> None:
        database = CountedDatabase(store.database)
        histories = SessionHistories()
        rows = []
        for number in range(3):
            name = f"s{number}"
            await store.database.write(sessions.create(a_session(name)))
            await start_run(store.database, f"r{number}", name)
            await end_run(store.database, f"r{number}", "x" * 1_000)
            rows.append(await read_row(store.database, name))
        for row in (*rows, rows[2], rows[0]):
            await histories.read(database, row)
        assert database.rows == [1, 1, 1, 1]

    store.run(check())


def test_unused_history_is_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_documents, "KEPT_SECONDS", 0.01)

    async def check() -> None:
        database = CountedDatabase(store.database)
        histories = SessionHistories()
        await store.database.write(sessions.create(a_session()))
        await start_run(store.database, "r0")
        await end_run(store.database, "r0", "text")
        async with asyncio.timeout(PATIENCE):
            while database.rows.count(1) < 2:
                await read_history(histories, database)
                await asyncio.sleep(0.1)

    store.run(check())
