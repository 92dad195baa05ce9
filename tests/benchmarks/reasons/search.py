"""Search among many sessions, compared with a filtered list (docs/decisions/0114).

`python -m tests.benchmarks.reasons.search sqlite 1000000` (or `postgres`) stores sessions with a
text of 40 words each in a temporary database and prints milliseconds of the first page, read as the
service reads it. One session in twenty is of the large user, the others of 2,000 users. Every text
has `everyone`, every second one `half`, one half of the time `odd` and in the other half `even`, so
that both together never occur; the older half has `former`. Ten texts have `needle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from agentctl.config import settings
from agentctl.requests import SessionFilter, SessionLocator
from agentctl.store.database import Database, Work
from agentctl.store.databases import open_database
from agentctl.store.listing import RowPage, Slice
from agentctl.store.repositories import search_pages, session_lists
from agentctl.store.search import build_owner_key, parse_search
from agentctl.store.visibility import EVERYONE, Visibility
from tests.postgres import running_postgres

__all__ = ["main"]

ROUNDS = 7
BATCH = 20_000
SESSION = (
    "session_id", "session_type", "component_id", "user_id", "session_name", "total_tokens",
    "run_count", "history_bytes", "created_at", "updated_at", "metrics",
)  # fmt: skip
TEXT = ("place", "session_id", "owner", "tokenizer", "text")
SEARCHES = (
    "everyone", "half", "needle", "everyone half", "needle everyone", "odd even", "former",
    "abc*", "ab3f", "every*",
)  # fmt: skip
LARGE, SMALL = Visibility(everyone=False, user_id="large"), Visibility(False, "user7")


def build_rows(count: int) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield batches of rows of both tables."""
    numbers = random.Random(1)
    words = [f"{number:04x}" for number in range(65_536)]
    for first in range(0, count, BATCH):
        sessions, texts = list[Any](), list[Any]()
        for number in range(first, min(first + BATCH, count)):
            user = "large" if number % 20 == 0 else f"user{number % 2_000}"
            at = 1_700_000_000_000_000 + number * 10_000
            session_id = f"s{number:07}"
            component = "often" if number % 3 else "seldom"
            sessions.append(
                (session_id, "agent", component, user, session_id, 0, 1, 0, at, at, "{}")
            )
            said = ["everyone", "half" if number % 2 else "other", *numbers.choices(words, k=40)]
            said.append("odd" if number % 4 < 2 else "even")
            said += ["needle"] if number % (count // 10) == 77 else []
            said += ["former"] if number < count // 2 else []
            place = at // 1000 << 20
            texts.append((place, session_id, build_owner_key(user), "words", " ".join(said)))
        yield sessions, texts


def fill_file(path: Path, count: int) -> None:
    """Fill a SQLite file."""
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "OFF")
    for rows in build_rows(count):
        with connection:
            for table, columns, batch in zip(
                ("sessions", "search_texts"), (SESSION, TEXT), rows, strict=True
            ):
                marks = ", ".join("?" * len(columns))
                connection.executemany(
                    f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", batch
                )
    connection.close()


async def fill_server(url: str, count: int) -> None:
    """Fill a PostgreSQL database."""
    connection = await asyncpg.connect(url)
    for sessions, texts in build_rows(count):
        await connection.copy_records_to_table("sessions", records=sessions, columns=SESSION)
        await connection.copy_records_to_table("search_texts", records=texts, columns=TEXT)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


class Meter:
    """Prints the cost of reads: CPU time of this process and of the connections to PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.baseline = 0.0

    async def measure(self, name: str, work: Work[RowPage[Any]], *, baseline: bool = False) -> None:
        """Print the median milliseconds of a read, and its ratio to the baseline."""
        seconds, cpu = [], []
        for _ in range(ROUNDS):
            before, began = _get_cpu_seconds(), time.perf_counter()
            page = await self.database.read(work, size="large")
            seconds.append((time.perf_counter() - began) * 1_000)
            cpu.append((_get_cpu_seconds() - before) * 1_000)
        median = statistics.median(cpu)
        self.baseline = median if baseline else self.baseline
        total = f"{page.total}{'+' if page.capped else ''}"
        print(
            f"  {name:44} {median:8.2f} ms CPU ({statistics.median(seconds):8.2f} ms),"
            f" {median / self.baseline:6.1f}, {len(page.rows):2} rows of {total}",
            flush=True,
        )


def _get_cpu_seconds() -> float:
    """Return the CPU time of this process, and of PostgreSQL on this machine for its connections."""
    nanoseconds = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"postgres: "):
                nanoseconds += int(path.with_name("schedstat").read_text().split()[0])
    return time.process_time() + nanoseconds / 1e9


async def compare(engine: str, count: int, place: str, path: Path) -> None:
    """Fill a database and print its figures."""
    database = open_database(settings.Database(id="main", url=place), create=True)
    await database.check()
    began = time.perf_counter()
    await (asyncio.to_thread(fill_file, path, count) if engine == "sqlite"
           else fill_server(place, count))  # fmt: skip
    print(f"{engine}, {count:,} sessions: stored in {time.perf_counter() - began:.0f} s")
    for who, seen in {"all": EVERYONE, "large user": LARGE, "small user": SMALL}.items():
        for name, chosen in {
            "list": SessionFilter(),
            "list of a component": SessionFilter(component_id="seldom"),
            "list of a name": SessionFilter(session_name="s0000"),
            "list by type": SessionFilter(where=SessionLocator(type="agent")),
        }.items():
            work = session_lists.list_page(chosen, seen, Slice())
            await measure(database, f"{who}: {name}", work)
        for text in SEARCHES:
            work = search_pages.list_page(
                parse_search(text, "words"), seen, seen.conditions(), Slice(),
                is_sqlite=engine == "sqlite",
            )  # fmt: skip
            await measure(database, f"{who}: search {text!r}", work)
    await database.close()


def main() -> None:
    """Print the figures of one engine."""
    engine, count = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.db")
        if engine == "sqlite":
            asyncio.run(compare(engine, count, f"sqlite:///{path}", path))
        else:
            with running_postgres() as url:
                asyncio.run(compare(engine, count, url, path))


if __name__ == "__main__":
    main()
