"""Search in the memories of one user: rows of terms, and the full-text indexes of the engines.

`python -m tests.benchmarks.reasons.memory_search` stores 1,000 and 100,000 memories of one user
among those of others, on SQLite and on PostgreSQL, and prints the median milliseconds of a search.
A third of the memories contains the frequent word, ten memories contain the rare one.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import asyncpg

from agentctl.config import settings
from agentctl.records.times import now
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import open_database
from agentctl.store.repositories import memories
from tests.postgres import running_postgres

__all__ = ["build_texts", "fill", "main", "measure"]

SIZES = (1_000, 100_000)
ROUNDS = 30
LIMIT = 10
SEARCHES = {"frequent": "tea", "rare": "zeppelin", "both": "tea zeppelin"}
_WORDS = [f"word{number}" for number in range(5_000)]


def build_texts(count: int) -> list[str]:
    """Return texts of eight words."""
    dice = random.Random(7)
    texts = []
    for number in range(count):
        words = dice.choices(_WORDS, k=6)
        words.append("tea" if number % 3 == 0 else "coffee")
        words.append("zeppelin" if number % (count // 10) == 0 else "plane")
        texts.append(" ".join(words))
    return texts


async def fill(database: Database, user: str, texts: list[str]) -> None:
    """Store the memories of a user."""
    for first in range(0, len(texts), 500):
        await database.write(_store(user, texts[first : first + 500]))


@unit
def _store(user: str, texts: list[str]) -> Steps[None]:
    for text in texts:
        yield from memories.create(memories.build_memory(user, text, (), now=now()))


async def measure(search: Callable[[str], Awaitable[object]]) -> dict[str, float]:
    """Return the median milliseconds of each search."""
    found = {}
    for name, text in SEARCHES.items():
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await search(text)
            seconds.append(time.perf_counter() - began)
        found[name] = statistics.median(seconds) * 1_000
    return found


def _open_fts5(path: Path, texts: list[str]) -> Callable[[str], Awaitable[object]]:
    """Search with FTS5, ordered by rank."""
    connection = apsw.Connection(str(path))
    connection.execute("CREATE VIRTUAL TABLE m USING fts5(user_id, memory)")
    with connection:
        connection.executemany("INSERT INTO m VALUES ('ada', ?)", [(text,) for text in texts])

    async def search(text: str) -> object:
        words = " OR ".join(text.split())
        sql = "SELECT rowid FROM m WHERE m MATCH ? ORDER BY rank LIMIT ?"
        return connection.execute(sql, (f"user_id:ada AND memory:({words})", LIMIT)).fetchall()

    return search


async def _open_tsvector(url: str, texts: list[str]) -> Callable[[str], Awaitable[object]]:
    """Search with a GIN index on a text search vector, ordered by rank."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "DROP TABLE IF EXISTS m; CREATE TABLE m (user_id text, memory text, search tsvector"
        " GENERATED ALWAYS AS (to_tsvector('simple', memory)) STORED)"
    )
    rows = [("ada", text) for text in texts]
    await connection.copy_records_to_table("m", records=rows, columns=["user_id", "memory"])
    await connection.execute("CREATE INDEX ON m USING gin (search); ANALYZE m")

    async def search(text: str) -> object:
        words = " | ".join(text.split())
        return await connection.fetch(
            "SELECT memory FROM m WHERE user_id = 'ada' AND search @@ to_tsquery('simple', $1)"
            " ORDER BY ts_rank(search, to_tsquery('simple', $1)) DESC LIMIT $2",
            words,
            LIMIT,
        )

    return search


async def _measure_terms(entry: settings.Database, texts: list[str]) -> dict[str, float]:
    database = open_database(entry, create=True)
    try:
        user = f"ada{len(texts)}"
        await fill(database, user, texts)
        return await measure(lambda text: database.read(memories.search(user, text, LIMIT)))
    finally:
        await database.close()


async def _measure_all(folder: Path, url: str) -> None:
    print("| memories | index | frequent ms | rare ms | both ms |")
    print("| --- | --- | --- | --- | --- |")
    for size in SIZES:
        texts = build_texts(size)
        file = settings.Database("main", f"sqlite:///{folder / f'{size}.db'}")
        results = {
            "terms, SQLite": await _measure_terms(file, texts),
            "FTS5": await measure(_open_fts5(folder / f"{size}.fts", texts)),
            "terms, PostgreSQL": await _measure_terms(settings.Database("main", url), texts),
            "tsvector": await measure(await _open_tsvector(url, texts)),
        }
        for name, found in results.items():
            figures = " | ".join(f"{found[search]:.2f}" for search in SEARCHES)
            print(f"| {size:,} | {name} | {figures} |")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, running_postgres() as url:
        asyncio.run(_measure_all(Path(folder), url))


if __name__ == "__main__":
    main()
