"""Costs of reads and appends with a thousand sessions and with a million.

`python -m bench.scale` queries two SQLite files in `.bench/scale`, and fills missing
ones: 6 GB, about 5 minutes. `--small URL --large URL` select other databases, both of one
engine, that `bench.seed` has filled. Every query runs on both in turns, round after
round; the table has microseconds of the store alone. Appends change both databases: a run is
created, started and finished, in one transaction each.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.config import settings
from agentctl.records.runs import RunEnd
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.store.database import Database, ReadSize, Sql, Statement, Steps, Work, unit
from agentctl.store.databases import open_database
from agentctl.store.repositories import run_reads, runs, sessions
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import EVERYONE, Visibility
from tests.generated.fill import fill_database
from tests.generated.population import (
    COMPONENTS,
    DENSE_USER,
    FREQUENT_NAME,
    OLD_NAME,
    RARE_NAME,
    START,
    YEAR,
    Population,
)
from tests.kit.rows import a_run
from tests.store.lists import list_runs, list_sessions

__all__ = ["WARM", "build_cases", "measure_lines"]

FOLDER = Path(__file__).parents[1] / ".bench" / "scale"

SMALL = 1_000
LARGE = 1_000_000
RUNS = 5
"""Runs per session."""

ROUNDS = 120
"""Number of times that each query runs on each database; the first ones are not counted."""

WARM = 5

MIDDLE = (START + YEAR // 2, "")
"""Cursor of a page in the middle: after half of the rows."""

DENSE = Visibility(False, DENSE_USER)
SPARSE = Visibility(False, "user-7")
SPARSE_USER = "user-7"
COMPONENT = COMPONENTS[0][1]
RARE_COMPONENT = COMPONENTS[-1][1]


class Sample(NamedTuple):
    """A session of a database, for the arguments of queries."""

    session_id: str
    session_type: str
    component_id: str
    user_id: str | None


class Case(NamedTuple):
    """A query.

    Attributes:
        write: True if the query changes rows.
        size: the expected cost, as the service states it.
    """

    name: str
    ask: Callable[[Sample, ListTotals], Work[Any] | list[Work[Any]]]
    write: bool = False
    size: ReadSize = "small"


_SAMPLES = Sql(
    "SELECT session_id, session_type, component_id, user_id FROM sessions"
    " WHERE created_at >= :since ORDER BY created_at LIMIT 8"
)


@unit
def _read_samples() -> Steps[list[Sample]]:
    rows = yield Statement(_SAMPLES, {"since": START + YEAR // 3})
    return [Sample(*row) for row in rows]


def _list_sessions(name: str, visibility: Visibility = EVERYONE, **options: Any) -> Case:
    return Case(
        f"sessions, {name}",
        lambda _, totals: list_sessions(visibility, totals, **options),
        size="unknown",
    )


def _list_runs(name: str, visibility: Visibility = EVERYONE, **options: Any) -> Case:
    return Case(
        f"runs, {name}", lambda _, totals: list_runs(visibility, totals, **options), size="large"
    )


def _session_cases() -> Iterator[Case]:
    yield _list_sessions("page 1")
    yield _list_sessions("page 1, oldest first", order="asc")
    yield _list_sessions("page 1, by change", sort="updated_at")
    yield _list_sessions("page 1, by change, oldest first", sort="updated_at", order="asc")
    yield _list_sessions("cursor page in the middle", after=MIDDLE)
    yield _list_sessions("cursor page by change", after=MIDDLE, sort="updated_at")
    yield _list_sessions("page at row 500", offset=500)
    yield _list_sessions("page at row 10,000", offset=10_000)
    yield _list_sessions("type", type="team")
    yield _list_sessions("type, by change", type="team", sort="updated_at")
    yield _list_sessions("type, cursor page", type="team", after=MIDDLE)
    yield _list_sessions("component", component_id=COMPONENT)
    yield _list_sessions("rare component", component_id=RARE_COMPONENT)
    yield _list_sessions("sparse user", user_id=SPARSE_USER)
    yield _list_sessions("dense user", user_id=DENSE_USER)
    yield _list_sessions("dense user, by change", user_id=DENSE_USER, sort="updated_at")
    yield _list_sessions("rare name", session_name=RARE_NAME)
    yield _list_sessions("frequent name", session_name=FREQUENT_NAME)
    yield _list_sessions("frequent name of old sessions", session_name=OLD_NAME)
    yield _list_sessions("frequent name, by change", session_name=FREQUENT_NAME, sort="updated_at")
    yield _list_sessions("as sparse user", SPARSE)
    yield _list_sessions("as nobody", Visibility(False))
    yield _list_sessions("as dense user", DENSE)
    yield _list_sessions("as dense user, cursor page", DENSE, after=MIDDLE)
    yield _list_sessions("as dense user, type", DENSE, type="team")
    yield _list_sessions("as dense user, rare component", DENSE, component_id=RARE_COMPONENT)
    yield _list_sessions("as dense user, frequent name", DENSE, session_name=FREQUENT_NAME)
    yield _list_sessions("as dense user, rare name", DENSE, session_name=RARE_NAME)


def _run_cases() -> Iterator[Case]:
    yield _list_runs("page 1")
    yield _list_runs("page 1, oldest first", order="asc")
    yield _list_runs("cursor page in the middle", after=MIDDLE)
    yield _list_runs("type", component_type="team")
    yield _list_runs("component", component_id=COMPONENT)
    yield _list_runs("rare component", component_id=RARE_COMPONENT)
    yield _list_runs("sparse user", user_id=SPARSE_USER)
    yield _list_runs("as dense user", DENSE)
    yield _list_runs("as dense user, type", DENSE, component_type="team")
    yield _list_runs("COMPLETED", status="COMPLETED")
    yield _list_runs("CANCELLED", status="CANCELLED")
    yield _list_runs("as dense user, CANCELLED", DENSE, status="CANCELLED")
    yield _list_runs("RUNNING", status="RUNNING")
    yield _list_runs("live", live=True)
    yield _list_runs("since half a year", created_after=MIDDLE[0])
    yield Case(
        "runs, session",
        lambda sample, totals: list_runs(EVERYONE, totals, session_id=sample.session_id),
        size="large",
    )


@unit
def _read_session(sample: Sample, _: ListTotals) -> Steps[None]:
    yield from sessions.get(sample.session_id, EVERYONE)
    yield from run_reads.list_histories(sample.session_id)


def _append_run(sample: Sample, _: ListTotals) -> list[Work[Any]]:
    run_id = new_id()
    at = now()
    run = a_run(
        run_id,
        sample.session_id,
        component_type=sample.session_type,
        component_id=sample.component_id,
        user_id=sample.user_id,
        owner="worker",
        created_at=at,
    )
    end = RunEnd(
        run_id,
        1,
        "COMPLETED",
        "Answer",
        "[]",
        "[]",
        "[]",
        '{"total_tokens":60}',
        None,
        None,
        at,
        at,
    )
    return [runs.create(run), runs.claim(run_id, 1, "worker", at), runs.finish(end)]


def _create_session(sample: Sample, _: ListTotals) -> Work[Any]:
    return sessions.create(
        sessions.build_session(
            new_id(),
            sample.session_type,
            component_id=sample.component_id,
            user_id=sample.user_id,
            now=now(),
        )
    )


def build_cases() -> list[Case]:
    """Build all queries."""
    return [
        *_session_cases(),
        *_run_cases(),
        Case("session detail", _read_session),
        Case("session created", _create_session, write=True),
        Case("run appended, three transactions", _append_run, write=True),
    ]


async def _measure(database: Database, case: Case, sample: Sample) -> float:
    units = case.ask(sample, database.totals)
    started = time.perf_counter()
    for work in units if isinstance(units, list) else [units]:
        await (database.write(work) if case.write else database.read(work, size=case.size))
    return (time.perf_counter() - started) * 1e6


async def measure_lines(small: Database, large: Database, rounds: int, only: str) -> Iterator[str]:
    """Measure the queries and return the table.

    A line has the median and the lowest decile of both databases, their ratios, and the time of the
    first call on the large database.
    """
    chosen = [case for case in build_cases() if only in case.name]
    taken: dict[Case, tuple[list[float], list[float]]] = {case: ([], []) for case in chosen}
    samples = [await database.read(_read_samples()) for database in (small, large)]
    for number in range(rounds):
        for case, times in taken.items():
            for database, found, kept in zip((small, large), samples, times, strict=True):
                kept.append(await _measure(database, case, found[number % len(found)]))
    return _table(taken)


def _table(taken: dict[Case, tuple[list[float], list[float]]]) -> Iterator[str]:
    yield "| | small | large | ratio | least tenth: small | large | ratio | first |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for case, (few, many) in taken.items():
        found = [f"{case.name:<40}"]
        for pick in (statistics.median, _lowest_decile):
            small = pick(few[WARM:])
            large = pick(many[WARM:])
            found += [f"{small:6.0f}", f"{large:6.0f}", f"{large / small:5.2f}"]
        yield f"| {' | '.join(found)} | {many[0]:6.0f} |"


def _lowest_decile(times: list[float]) -> float:
    """Return the lowest decile, which other work of the machine affects least."""
    return statistics.quantiles(times, n=10)[0]


async def _prepare_file(number: int) -> str:
    """Return the URL of a file with `number` sessions; fill it if it does not exist."""
    path = FOLDER / f"{number}.db"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        print(f"Filling {path} with {number:,} sessions, {RUNS} runs each", file=sys.stderr)
        await fill_database(f"sqlite:///{path}", Population(number, RUNS))
    return f"sqlite:///{path}"


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--small", help="URL of the one with a thousand sessions")
    parser.add_argument("--large", help="URL of the one with very many")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="only queries with this in their name")
    options = parser.parse_args()
    urls = [
        options.small or await _prepare_file(SMALL),
        options.large or await _prepare_file(LARGE),
    ]
    small, large = (open_database(settings.Database("main", url), create=False) for url in urls)
    for line in await measure_lines(small, large, options.rounds, options.only):
        print(line, flush=True)
    await small.close()
    await large.close()


if __name__ == "__main__":
    asyncio.run(_main())
