"""Costs of a session with 10,000 runs, compared with one of 10 runs.

`python -m tests.benchmarks.long_session --url URL` adds the two sessions to a database that
`tests.benchmarks.seed` has filled. Each is listed, appended to and read whole, round after round;
the table has medians in microseconds of the store alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from itertools import product

from agentctl.config import settings
from agentctl.records.runs import RunEnd
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import open_database
from agentctl.store.repositories import run_reads, runs, sessions
from agentctl.store.visibility import Visibility
from tests.store.lists import list_sessions
from tests.store.rows import a_run

__all__ = ["measure_lines"]

SHORT = 10
LONG = 10_000
BATCH = 250
ROUNDS = 40
HISTORY = '[{"role":"user","content":"%s"}]' % ("What is it? " * 80)


@unit
def _append_runs(session_id: str, count: int) -> Steps[None]:
    """Append runs one after the other, in one transaction."""
    for _ in range(count):
        for work in _run(session_id):
            yield from work


def _run(session_id: str) -> list[Work[object]]:
    run_id = new_id()
    at = now()
    run = a_run(
        run_id,
        session_id,
        component_id="agent-00",
        user_id=session_id,
        owner="worker",
        created_at=at,
    )
    end = RunEnd(
        run_id,
        1,
        "COMPLETED",
        "Answer",
        HISTORY,
        "[]",
        "[]",
        '{"total_tokens":60}',
        None,
        None,
        at,
        at,
    )
    return [runs.create(run), runs.claim(run_id, 1, "worker", at), runs.finish(end)]


async def _create_session(database: Database, count: int) -> str:
    """Create a session with `count` runs and its own user, both with the same id; return the id."""
    session_id = new_id()
    row = sessions.build_session(session_id, "agent", user_id=session_id, now=now())
    await database.write(sessions.create(row))
    for first in range(0, count, BATCH):
        await database.write(_append_runs(session_id, min(BATCH, count - first)))
    return session_id


async def _measure(database: Database, name: str, session_id: str) -> tuple[float, int]:
    """Return the microseconds of one operation and the bytes read."""
    started = time.perf_counter()
    size = 0
    if name == "its row in a list":
        work = list_sessions(Visibility(False, session_id))
        await database.read(work, size="large")
    elif name == "a run appended, three transactions":
        for work in _run(session_id):
            await database.write(work)
    elif name == "the messages of the 10 latest runs":
        await database.read(run_reads.list_recent(session_id, 10, 10_000_000))
    else:
        found = await database.read(run_reads.list_histories(session_id), size="large")
        size = sum(len(history.text) for history in found)
    return (time.perf_counter() - started) * 1e6, size


NAMES = (
    "its row in a list",
    "a run appended, three transactions",
    "the messages of the 10 latest runs",
    "its whole history",
)


async def measure_lines(database: Database) -> Iterator[str]:
    """Measure all operations; return the table with a line for the cost per kilobyte of history."""
    ids = [await _create_session(database, count) for count in (SHORT, LONG)]
    taken: dict[str, list[list[tuple[float, int]]]] = {name: [[], []] for name in NAMES}
    # Shuffled: an operation after one that read ten megabytes waits for the garbage collection.
    order = list(product(NAMES, (0, 1)))
    chance = random.Random(1)
    for _ in range(ROUNDS):
        chance.shuffle(order)
        for name, which in order:
            taken[name][which].append(await _measure(database, name, ids[which]))
    return _table(taken)


def _table(taken: dict[str, list[list[tuple[float, int]]]]) -> Iterator[str]:
    yield f"| {'':<36} | {SHORT} runs | {LONG:,} runs | ratio |"
    yield "| --- | --- | --- | --- |"
    for name, both in taken.items():
        short, long = (statistics.median(spent for spent, _ in times) for times in both)
        yield f"| {name:<36} | {short:7.0f} | {long:11.0f} | {long / short:5.2f} |"
        size = both[1][-1][1] / 1024
        if size:
            yield f"| {'the same, a KB':<36} | | {long / size:11.2f} | |"


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--url", required=True, help="sqlite:////absolute/path or postgresql://…")
    database = open_database(settings.Database("main", parser.parse_args().url), create=False)
    for line in await measure_lines(database):
        print(line, flush=True)
    await database.close()


if __name__ == "__main__":
    asyncio.run(_main())
