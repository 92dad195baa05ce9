"""`make bench`: all measurements in one table, written to docs/benchmarks.md.

    python -m tests.benchmarks [PART ...]    run only these parts, write nothing

A slow result is no failure: the figures are to be read. AgentOS runs in its own environment, which
`make bench` creates.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import (
    cancellation,
    commands,
    engines,
    idle,
    processes,
    reads,
    runs,
    streams,
    tokens,
    verification,
)
from tests.benchmarks.load import require_wrk
from tests.benchmarks.measure import Row, format_text
from tests.benchmarks.report import write_document
from tests.benchmarks.seeding import seed_database
from tests.benchmarks.servers import (
    AGENTOS_PYTHON,
    RunningServer,
    seed_agentos,
    serve_agentctl,
    serve_agentos,
    serve_endpoint,
    serve_floors,
)
from tests.benchmarks.work import SHORT_RUNS, Session, create_work, listed_sessions, sized_sessions
from tests.postgres import running_postgres

OLD = 1_500_000_000


class Setup(NamedTuple):
    """The folder of the benchmarks, and the URL of the model endpoint."""

    folder: Path
    endpoint: str

    @property
    def model_url(self) -> str:
        return f"{self.endpoint}/v1"


def compare_with_agentos(bench: Setup) -> Iterator[Row]:
    """Compare agentctl with AgentOS on the same work, and with the floors; all are running."""
    sessions = [*sized_sessions(), Session("append-999", 999, OLD), *listed_sessions()]
    work = create_work(bench.folder / "work", bench.model_url, sessions)
    seed_database(work)
    seed_agentos(work)
    with (
        running_postgres(durable=True) as url,
        serve_agentos(work) as other,
        serve_floors(work) as floor,
    ):
        twin = create_work(bench.folder / "twin", bench.model_url, sessions, database=url)
        seed_database(twin)
        with serve_agentctl(work) as server, serve_agentctl(twin) as on_postgres:
            yield from _compare_with_agentos(bench, replace(server, twin=on_postgres), other, floor)
        yield from processes.compare_starts(work, twin)


def _compare_with_agentos(
    bench: Setup, one: RunningServer, other: RunningServer, floor: RunningServer
) -> Iterator[Row]:
    memory = processes.Memory(one, other)
    yield from reads.compare_with_agentos(one, other)
    yield from reads.compare_with_floors(one, floor)
    yield from runs.compare_rates(one, other)
    yield from memory.rows()
    yield from runs.compare_first_words(one, other, bench.endpoint)
    yield from runs.compare_appends(one, other)


def measure_long_sessions(bench: Setup) -> Iterator[Row]:
    """Measure a session with 10,000 runs."""
    sessions = [*sized_sessions((1, 1_000, 10_000)), *listed_sessions(400, SHORT_RUNS)]
    work = create_work(bench.folder / "long", bench.model_url, sessions)
    seed_database(work)
    with serve_agentctl(work) as place:
        yield from reads.measure_long_session(place)
        yield from runs.measure_long_session(place)


def compare_workers(bench: Setup) -> Iterator[Row]:
    """Compare one worker with two."""
    work = create_work(bench.folder / "workers", bench.model_url, sized_sessions((1,)))
    seed_database(work)
    yield from processes.compare_workers(work)


def measure_hung_calls(bench: Setup) -> Iterator[Row]:
    """Measure cancels of runs whose model does not answer."""
    (folder := bench.folder / "cancels").mkdir()
    yield from cancellation.measure_hung_calls(folder, 30)


def measure_streams(bench: Setup) -> Iterator[Row]:
    """Measure a thousand concurrent streams."""
    yield from streams.measure_streams(bench.folder / "streams", bench.endpoint)


def compare_tokens(bench: Setup) -> Iterator[Row]:
    """Compare the CPU time of a streamed token with a pass-through and with AgentOS."""
    yield from tokens.measure_tokens(bench.folder, bench.model_url)


def measure_idle_servers(bench: Setup) -> Iterator[Row]:
    """Measure servers that no caller uses."""
    yield from idle.measure_idle_servers(bench.folder)


def compare_commands(bench: Setup) -> Iterator[Row]:
    """Compare commands with a bare Typer program."""
    (folder := bench.folder / "commands").mkdir()
    yield from commands.compare_with_typer(folder)


def compare_verification(_: Setup) -> Iterator[Row]:
    """Compare the verification of a token with PyJWT."""
    yield from verification.compare_with_pyjwt()


def compare_engines(bench: Setup) -> Iterator[Row]:
    """Compare PostgreSQL with SQLite."""
    yield from engines.compare_engines(bench.folder, bench.model_url)


PARTS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "agentos": compare_with_agentos,
    "long": measure_long_sessions,
    "streams": measure_streams,
    "idle": measure_idle_servers,
    "cancels": measure_hung_calls,
    "commands": compare_commands,
    "tokens": compare_tokens,
    "verification": compare_verification,
    "workers": compare_workers,
    "engines": compare_engines,
}


def measure_parts(parts: list[str]) -> Iterator[Row]:
    """Run some parts; yield each row as soon as it is measured."""
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        for part in parts:
            yield from PARTS[part](Setup(Path(directory), url))


def main(parts: list[str]) -> None:
    """Measure and print the table; with all parts, also write the document."""
    require_wrk()
    if not AGENTOS_PYTHON.exists():
        raise SystemExit("bench: AgentOS is not there; `make bench` installs it")
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    start, rows = time.monotonic(), list[Row]()
    for row in measure_parts(parts or list(PARTS)):
        rows.append(row)
        print(
            f"{time.monotonic() - start:>5.0f} s  {' | '.join(row.cells)}",
            file=sys.stderr,
            flush=True,
        )
    print(format_text(rows))
    if not parts:
        write_document(rows, time.monotonic() - start)


if __name__ == "__main__":
    main(sys.argv[1:])
