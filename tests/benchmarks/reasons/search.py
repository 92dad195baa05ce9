"""Search among many sessions, compared with a filtered list (docs/decisions/0114).

`python -m tests.benchmarks.reasons.search sqlite 1000000` (or `postgres`) stores sessions with a
text of 40 words each in a temporary database and prints the cost of the first page, read as the
service reads it, its ratio to that of a list of a component of the same user, and the time of
writes meanwhile. The cost is CPU time, with that of the server of PostgreSQL: other work of the
machine changes it less than the time.

One session in twenty is of the large user, the others of 2,000 users. Every text has `everyone`,
every second one `half`, one half of the time `odd` and in the other half `even`, so that both
together never occur; the older half has `former`. Ten texts have `needle`.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import asyncpg

from agentctl.config import settings
from agentctl.interface.requests import SessionFilter
from agentctl.records.times import now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import open_database
from agentctl.store.listing import RowPage, Slice
from agentctl.store.repositories import lists, sessions
from agentctl.store.repositories.search import add_session
from agentctl.store.repositories.search_pages import WordSearch
from agentctl.store.search import build_owner_key, parse_search
from agentctl.store.visibility import EVERYONE, Visibility
from tests.postgres import running_postgres
from tests.store.rows import a_session

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
RARE_TAG = SessionFilter(tag=("rare",))
WRITES = 300
LARGE = Visibility(everyone=False, user_id="large")
SMALL = Visibility(False, "user7")


def build_rows(count: int) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield batches of rows of both tables."""
    numbers = random.Random(1)
    words = [f"{number:04x}" for number in range(65_536)]
    for first in range(0, count, BATCH):
        rows = list[Any]()
        texts = list[Any]()
        for number in range(first, min(first + BATCH, count)):
            user = "large" if number % 20 == 0 else f"user{number % 2_000}"
            at = 1_700_000_000_000_000 + number * 10_000
            session_id = f"s{number:07}"
            component = "often" if number % 3 else "seldom"
            rows.append((session_id, "agent", component, user, session_id, 0, 1, 0, at, at, "{}"))
            said = ["everyone", "half" if number % 2 else "other", *numbers.choices(words, k=40)]
            said.append("odd" if number % 4 < 2 else "even")
            said += ["needle"] if number % (count // 10) == 77 else []
            said += ["former"] if number < count // 2 else []
            place = at // 1000 << 20
            texts.append((place, session_id, build_owner_key(user), "words", " ".join(said)))
        yield rows, texts


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
    for rows, texts in build_rows(count):
        await connection.copy_records_to_table("sessions", records=rows, columns=SESSION)
        await connection.copy_records_to_table("search_texts", records=texts, columns=TEXT)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


class Meter:
    """Prints the cost of reads: CPU time of this process and of the server of PostgreSQL.

    Args:
        processes: ids of the processes of the server.
    """

    def __init__(self, database: Database, processes: list[int]) -> None:
        self._database = database
        self._processes = processes
        self._baseline = 0.0

    async def measure(self, name: str, work: Work[RowPage[Any]], *, baseline: bool = False) -> None:
        """Print the median milliseconds of a read, and its ratio to the baseline."""
        seconds = list[float]()
        cpu = list[float]()
        for _ in range(ROUNDS):
            before = self._read_cpu()
            began = time.perf_counter()
            page = await self._database.read(work, size="large")
            seconds.append((time.perf_counter() - began) * 1_000)
            cpu.append((self._read_cpu() - before) * 1_000)
        median = statistics.median(cpu)
        self._baseline = median if baseline else self._baseline
        total = f"{page.total}{'+' if page.capped else ''}"
        print(
            f"  {name:44} {median:7.2f} ms CPU, ratio {median / self._baseline:5.1f},"
            f" time {statistics.median(seconds):7.1f} ms, {len(page.rows):2} rows of {total}",
            flush=True,
        )

    def _read_cpu(self) -> float:
        """Return seconds."""
        paths = [Path(f"/proc/{each}/schedstat") for each in self._processes]
        spent = [int(path.read_text().split()[0]) for path in paths if path.exists()]
        return time.process_time() + sum(spent) / 1e9


async def list_processes(database: Database, url: str) -> list[int]:
    """Return the processes of PostgreSQL for connections of a database."""
    work = lists.list_sessions(SessionFilter(), EVERYONE, Slice())
    await asyncio.gather(*(database.read(work, size="large") for _ in range(4)))
    connection = await asyncpg.connect(url)
    own = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
    processes = [row[0] for row in await connection.fetch(f"{own} AND pid <> pg_backend_pid()")]
    await connection.close()
    return processes


async def compare(engine: str, count: int, place: str, path: Path) -> None:
    """Fill a database and print its figures."""
    database = open_database(settings.Database(id="main", url=place), create=True)
    await database.check()
    began = time.perf_counter()
    await (
        asyncio.to_thread(fill_file, path, count)
        if engine == "sqlite"
        else fill_server(place, count)
    )
    print(f"{engine}, {count:,} sessions: stored in {time.perf_counter() - began:.0f} s")
    await print_figures(engine, database, place)
    await database.close()


async def print_figures(engine: str, database: Database, url: str) -> None:
    """Print the figures of a filled database."""
    processes = [] if engine == "sqlite" else await list_processes(database, url)
    meter = Meter(database, processes)
    for who, seen in {"all": EVERYONE, "large user": LARGE, "small user": SMALL}.items():
        for name, chosen in {
            "list of a component": SessionFilter(component_id="seldom"),
            "list of a name": SessionFilter(session_name="s0000"),
            "list of a tag": RARE_TAG,
        }.items():
            work = lists.list_sessions(chosen, seen, Slice())
            is_first = chosen.component_id is not None
            await meter.measure(f"{who}: {name}", work, baseline=is_first)
        for text in SEARCHES:
            await meter.measure(f"{who}: search {text!r}", build_search(engine, text, seen))
        work = build_search(engine, "everyone", seen, RARE_TAG)
        await meter.measure(f"{who}: search 'everyone' with a tag", work)
    print(f"  alone: {await measure_writes(database, None)}")
    for text in ("everyone", "every*", "odd even"):
        work = build_search(engine, text, EVERYONE)
        print(f"  during searches {text!r}: {await measure_writes(database, work)}")


def build_search(
    engine: str, text: str, seen: Visibility, filter: SessionFilter | None = None
) -> Work[RowPage[Any]]:
    """Build the read of the first page of a search."""
    search = WordSearch(parse_search(text, "words"), is_sqlite=engine == "sqlite")
    return lists.list_sessions(filter or SessionFilter(), seen, Slice(), search=search)


@unit
def write_one(session_id: str) -> Steps[None]:
    """Create a session, and index its name."""
    named = a_session(session_id, now=now(), session_name="everyone has a name")
    yield from sessions.create(named)
    yield from add_session(session_id, "words")


async def measure_writes(database: Database, work: Work[Any] | None) -> str:
    """Describe writes of sessions with a text, one every 5 ms, while two clients search."""
    stopped = False
    times = list[float]()
    reads = 0

    async def search() -> None:
        nonlocal reads
        while work is not None and not stopped:
            await database.read(work, size="large")
            reads += 1

    clients = [asyncio.create_task(search()) for _ in range(2)]
    for _ in range(WRITES):
        began = time.perf_counter()
        await database.write(write_one(f"new-{uuid4().hex}"))
        times.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(0.005)
    stopped = True
    await asyncio.gather(*clients)
    times.sort()
    middle = times[WRITES // 2]
    p99 = times[WRITES * 99 // 100]
    return f"writes: median {middle:.1f} ms, p99 {p99:.1f}, longest {times[-1]:.1f}, {reads} reads"


def main() -> None:
    """Print the figures of one engine."""
    engine = sys.argv[1]
    count = int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.db")
        if engine == "sqlite":
            asyncio.run(compare(engine, count, f"sqlite:///{path}", path))
        else:
            with running_postgres() as url:
                asyncio.run(compare(engine, count, url, path))


if __name__ == "__main__":
    main()
