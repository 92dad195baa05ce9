"""`make bench`: everything in one table, and in docs/benchmarks.md.

    python -m tests.benchmarks [PART ...]    only these parts, nothing is written

Nothing fails for being slow: the numbers are to be read. AgentOS is measured in an environment of
its own, which `make bench` makes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import (
    cancellation,
    commands,
    engines,
    processes,
    reads,
    runs,
    streams,
    verification,
)
from tests.benchmarks.load import require_wrk
from tests.benchmarks.measure import Row, text
from tests.benchmarks.places import AGENTOS_PYTHON, agentos, endpoint, floors, ours, seed_agentos
from tests.benchmarks.report import write
from tests.benchmarks.seeding import seed
from tests.benchmarks.work import SHORT_RUNS, Session, make_work, many_sessions, sized

OLD = 1_500_000_000


class Bench(NamedTuple):
    """Where the benchmarks work: a folder of their own, and a model's endpoint."""

    folder: Path
    endpoint: str

    @property
    def model_url(self) -> str:
        return f"{self.endpoint}/v1"


def beside_agentos(bench: Bench) -> Iterator[Row]:
    """Both servers on the same work, and the floors, all of them up for as long as this takes."""
    sessions = [*sized(), Session("append-999", 999, OLD), *many_sessions()]
    work = make_work(bench.folder / "work", bench.model_url, sessions)
    seed(work)
    seed_agentos(work)
    with ours(work) as one, agentos(work) as other, floors(work) as floor:
        memory = processes.Memory(one, other)
        yield from reads.against_agentos(one, other)
        yield from reads.against_floors(one, floor)
        yield from runs.rates(one, other)
        yield from memory.rows()
        yield from runs.first_words(one, other, bench.endpoint)
        yield from runs.appends(one, other)
    yield from processes.starts(work)


def long_sessions(bench: Bench) -> Iterator[Row]:
    """What a session of 10,000 runs costs."""
    sessions = [*sized((1, 1_000, 10_000)), *many_sessions(400, SHORT_RUNS)]
    work = make_work(bench.folder / "long", bench.model_url, sessions)
    seed(work)
    with ours(work) as place:
        yield from reads.long_session(place)
        yield from runs.long_append(place)


def two_workers(bench: Bench) -> Iterator[Row]:
    """One worker against two."""
    work = make_work(bench.folder / "workers", bench.model_url, sized((1,)))
    seed(work)
    yield from processes.workers(work)


def hung_calls(bench: Bench) -> Iterator[Row]:
    """Cancels of runs whose model does not answer."""
    (folder := bench.folder / "cancels").mkdir()
    yield from cancellation.of_hung_calls(folder, 30)


def many_streams(bench: Bench) -> Iterator[Row]:
    """A thousand streams at once."""
    yield from streams.concurrent(bench.folder / "streams", bench.endpoint)


def starts_of_commands(bench: Bench) -> Iterator[Row]:
    """Commands beside a bare Typer program."""
    (folder := bench.folder / "commands").mkdir()
    yield from commands.against_typer(folder)


def tokens(_: Bench) -> Iterator[Row]:
    """The verification of a token."""
    yield from verification.against_pyjwt()


def both_engines(bench: Bench) -> Iterator[Row]:
    """PostgreSQL beside SQLite."""
    yield from engines.beside_each_other(bench.folder, bench.model_url)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "agentos": beside_agentos,
    "long": long_sessions,
    "streams": many_streams,
    "cancels": hung_calls,
    "commands": starts_of_commands,
    "tokens": tokens,
    "workers": two_workers,
    "engines": both_engines,
}


def measured(parts: list[str]) -> Iterator[Row]:
    """The rows of some parts, each when it is known."""
    with tempfile.TemporaryDirectory() as directory, endpoint() as url:
        for part in parts:
            yield from PARTS[part](Bench(Path(directory), url))


def main(parts: list[str]) -> None:
    """Measure and print; all parts: write the document too."""
    require_wrk()
    if not AGENTOS_PYTHON.exists():
        raise SystemExit("bench: AgentOS is not there; `make bench` installs it")
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    start, rows = time.monotonic(), list[Row]()
    for row in measured(parts or list(PARTS)):
        rows.append(row)
        print(
            f"{time.monotonic() - start:>5.0f} s  {' | '.join(row.cells)}",
            file=sys.stderr,
            flush=True,
        )
    print(text(rows))
    if not parts:
        write(rows, time.monotonic() - start)


if __name__ == "__main__":
    main(sys.argv[1:])
