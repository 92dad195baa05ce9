"""Lists with filters that no index has, and a table of tags instead (docs/decisions/0118).

`python -m tests.benchmarks.reasons.compared_lists` stores 100,000 sessions with metadata and one
run each, on SQLite and on PostgreSQL, and prints milliseconds: of the first page, and of the whole
list page by page. One in 20,000 sessions has the rare tag, each has the usual one, one in a
hundred has failed. Then it measures what a table of tags would cost and save.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentctl.config import settings
from agentctl.interface.requests import SUMMARY_VIEW
from agentctl.store.database import Database, Sql, Steps, unit
from agentctl.store.databases import open_database
from agentctl.store.listing import RowPage
from agentctl.store.repositories import sessions
from tests.postgres import running_postgres
from tests.store.lists import list_runs, list_sessions
from tests.store.rows import START, a_run, a_session, a_whole_run, an_end

__all__ = ["main"]

COUNT = 100_000
BATCH = 500
ROUNDS = 5
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "all sessions": (list_sessions, {}),
    "sessions, usual tag": (list_sessions, {"tag": ("usual",)}),
    "sessions, rare tag": (list_sessions, {"tag": ("rare",)}),
    "sessions, one value": (list_sessions, {"metadata": ("ticket=77777",)}),
    "sessions, ERROR": (list_sessions, {"status": "ERROR"}),
    "sessions, PAUSED (none)": (list_sessions, {"status": "PAUSED"}),
    "sessions, error": (list_sessions, {"error": "in time"}),
    "all runs": (list_runs, {"form": SUMMARY_VIEW}),
    "runs, rare tag": (list_runs, {"tag": ("rare",), "form": SUMMARY_VIEW}),
    "runs, error": (list_runs, {"error": "in time", "form": SUMMARY_VIEW}),
}
TEXT = json.dumps([{"role": "user", "content": "word " * 600}])

TERMS = Sql("CREATE TABLE tags_of_sessions (tag TEXT, created_at BIGINT, session_id TEXT)")
INDEX = Sql("CREATE INDEX tags_by_time ON tags_of_sessions (tag, created_at, session_id)")
ADD = Sql("INSERT INTO tags_of_sessions VALUES (:tag, :created_at, :session_id)")
FIND = Sql(
    "SELECT sessions.* FROM tags_of_sessions JOIN sessions USING (session_id) WHERE tag = :tag"
    " ORDER BY tags_of_sessions.created_at DESC, session_id DESC LIMIT 21"
)


@unit
def store(first: int, *, tags: bool = False) -> Steps[None]:
    for number in range(first, first + BATCH):
        tag = "rare" if number % 20_000 == 0 else "other"
        session_id = f"s{number:06}"
        run_id = f"r{number:06}"
        now = START + number * 1_000
        if tags:
            for each in ("usual", tag):
                yield from ADD.execute(tag=each, created_at=now, session_id=session_id)
            continue
        metadata = json.dumps({"tags": ["usual", tag], "ticket": number, "note": "some text " * 8})
        yield from sessions.create(a_session(session_id, now=now, metadata=metadata))
        run = a_run(run_id, session_id, created_at=now, metadata=metadata)
        failed = number % 100 == 1
        error = ("MODEL_TIMEOUT", "The model did not answer in time") if failed else (None, None)
        end = an_end(
            run_id,
            "ERROR" if failed else "COMPLETED",
            messages=TEXT,
            error_code=error[0],
            error_detail=error[1],
        )
        yield from a_whole_run(run, end)


async def measure(read: Callable[[], Awaitable[object]]) -> float:
    """Return the median milliseconds of a call."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await read()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1_000


async def compare(database: Database, name: str) -> None:
    """Fill a database and print its figures."""
    began = time.perf_counter()
    for first in range(0, COUNT, BATCH):
        await database.write(store(first))
    print(f"{name}: stored in {time.perf_counter() - began:.0f} s")
    for case, (query, filters) in CASES.items():
        first = await measure(lambda q=query, f=filters: database.read(q(**f), size="large"))
        began = time.perf_counter()
        pages = 0
        rows = 0
        page: RowPage[Any] | None = None
        while page is None or page.next is not None:
            part: dict[str, Any] = {"limit": 100}
            if page is not None:
                part["after"] = page.next
                part["total"] = (page.total, page.capped) if page.keeps_total else None
            page = await database.read(query(**filters, **part), size="large")
            pages = pages + 1
            rows = rows + len(page.rows)
        whole = time.perf_counter() - began
        print(f"  {case:26} {first:7.1f} ms; {rows:6} rows in {pages:4} pages, {whole:6.2f} s")
    for sql in (TERMS, INDEX):
        await database.write(sql.execute())
    began = time.perf_counter()
    for first in range(0, COUNT, BATCH):
        await database.write(store(first, tags=True))
    added = (time.perf_counter() - began) / COUNT * 1e6
    print(f"  a table of tags: {added:.0f} us more for each session with two tags")
    for tag in ("usual", "rare"):
        found = await measure(lambda t=tag: database.read(FIND.column(tag=t)))
        print(f"  a table of tags, {tag}: {found:.1f} ms")


async def _compare_both(folder: Path, url: str) -> None:
    for name, place in (("SQLite", f"sqlite:///{folder}/a.db"), ("PostgreSQL", url)):
        database = open_database(settings.Database(id="main", url=place), create=True)
        try:
            await compare(database, name)
        finally:
            await database.close()


def main() -> None:
    """Print the figures of both engines."""
    with tempfile.TemporaryDirectory() as folder, running_postgres() as url:
        asyncio.run(_compare_both(Path(folder), url))


if __name__ == "__main__":
    main()
