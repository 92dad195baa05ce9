"""`make bench`: all measurements in one table, written to docs/internals/benchmarks.md.

    python -m bench [--only PART ...] [--no-page]

The rows of each part are kept in `.bench/results`, so that the parts can be measured one by one:
the page is written when all of them are there. A slow result is no failure: the figures are to be
read. The other servers run in separate environments, which `make bench` creates.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import (
    alternatives,
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
from bench.load import require_wrk
from bench.measure import HEAD, Row, at_least, format_columns
from bench.other_work import OtherWork
from bench.peers import AGENTOS, LANGGRAPH, LITELLM, seed_agentos, serve_agentos
from bench.report import PartResult, read_results, save_result, write_document
from bench.seeding import seed_database
from bench.servers import RunningServer, serve_agentctl, serve_endpoint, serve_floors
from bench.work import SHORT_RUNS, Session, create_work, listed_sessions, sized_sessions
from tests.kit.postgres import running_postgres

OLD = 1_500_000_000


class Setup(NamedTuple):
    """The folder of the benchmarks, and the URL of the model endpoint."""

    folder: Path
    endpoint: str

    @property
    def model_url(self) -> str:
        return f"{self.endpoint}/v1"


GOALS = {
    "session detail, 100 runs": at_least(100, by_processor=True),
    "session detail, 1,000 runs": at_least(60, by_processor=True),
}
"""Targets of the ratios to AgentOS."""


def compare_with_agentos(bench: Setup) -> Iterator[Row]:
    """Compare agentctl, on both engines, with AgentOS on the same work, and with the floors."""
    sessions = _list_sessions()
    name = AGENTOS.title
    work = create_work(bench.folder / "agentos", bench.model_url, sessions)
    seed_database(work)
    seed_agentos(work, AGENTOS)
    with (
        running_postgres(durable=True) as url,
        serve_agentos(work, AGENTOS) as other,
        serve_floors(work) as floor,
    ):
        twin = create_work(bench.folder / "twin", bench.model_url, sessions, database=url)
        seed_database(twin)
        with serve_agentctl(work) as server, serve_agentctl(twin) as on_postgres:
            one = replace(server, twin=on_postgres)
            yield from _compare_servers(bench, one, other)
            yield from reads.compare_with_floors(one, floor)
        serve_other = partial(serve_agentos, work, AGENTOS)
        yield from processes.compare_starts(work, name, serve_other, twin)


def _list_sessions() -> list[Session]:
    return [*sized_sessions(), Session("append-999", 999, OLD), *listed_sessions()]


def _compare_servers(bench: Setup, one: RunningServer, other: RunningServer) -> Iterator[Row]:
    name = AGENTOS.title
    memory = processes.Memory(one, other, name)
    yield from reads.compare_with_agentos(one, other, name, GOALS)
    yield from runs.compare_rates(one, other, name, GOALS)
    yield from memory.rows()
    yield from runs.compare_first_words(one, other, name, bench.endpoint)
    yield from runs.compare_appends(one, other, name)


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


def compare_with_langgraph(bench: Setup) -> Iterator[Row]:
    """Compare a hosted LangGraph graph with `langgraph dev`."""
    yield from alternatives.compare_with_langgraph(bench.folder, bench.model_url)


def compare_with_litellm(bench: Setup) -> Iterator[Row]:
    """Compare the interface for clients of OpenAI with the proxy of LiteLLM."""
    yield from alternatives.compare_with_litellm(bench.folder, bench.model_url)


PARTS: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "agentos": compare_with_agentos,
    "long": measure_long_sessions,
    "streams": measure_streams,
    "idle": measure_idle_servers,
    "cancels": measure_hung_calls,
    "commands": compare_commands,
    "tokens": compare_tokens,
    "langgraph": compare_with_langgraph,
    "litellm": compare_with_litellm,
    "verification": compare_verification,
    "workers": compare_workers,
    "engines": compare_engines,
}

NEEDED = {
    "agentos": (AGENTOS,),
    "tokens": (AGENTOS,),
    "langgraph": (LANGGRAPH,),
    "litellm": (LITELLM,),
}
"""The programs that a part needs."""


def measure_part(part: str) -> PartResult:
    """Measure a part; print each row as soon as it is there."""
    start = time.monotonic()
    rows = list[list[str]]()
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        other_work = OtherWork()
        for row in PARTS[part](Setup(Path(directory), url)):
            rows.append(replace(row, other_work=other_work()).cells)
            took = time.monotonic() - start
            print(f"{took:>5.0f} s  {' | '.join(rows[-1])}", file=sys.stderr, flush=True)
    took = time.monotonic() - start
    return PartResult(part, f"{datetime.now(UTC):%Y-%m-%d %H:%M}", took, os.getloadavg()[1], rows)


def main() -> None:
    """Measure parts, print their table, and write the page from the last results of all parts."""
    parser = argparse.ArgumentParser(prog="python -m bench", allow_abbrev=False)
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, default=list(PARTS))
    parser.add_argument("--no-page", action="store_true", help="do not write the page")
    options = parser.parse_args()
    require_wrk()
    for part in options.only:
        for peer in NEEDED.get(part, ()):
            if not peer.is_installed:
                raise SystemExit(f"bench: {peer.title} is not there; `make bench` installs it")
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    for part in options.only:
        result = measure_part(part)
        save_result(result)
        print(f"\n{part}, {result.seconds / 60:.1f} minutes")
        print(format_columns([HEAD, *result.rows]), flush=True)
    missing = write_document(read_results(PARTS)) if not options.no_page else []
    if missing:
        print(f"\nThe page is not written: no results of {', '.join(missing)}", file=sys.stderr)


if __name__ == "__main__":
    main()
