"""The cost of traces: the CPU time of a streamed token with full sampling, against none.

    python -m bench.traces [ROUNDS]

Two servers do the same work in turns: 40 answers as fast as a server takes them, 40 paced answers,
and short runs, in which spans are a larger part of the work. The collector is this process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.measure import Row, at_most, build_ratio_row, format_text
from bench.seeding import seed_database
from bench.servers import serve_agentctl, serve_endpoint
from bench.streams import raise_file_limit
from bench.tokens import FAST, FAST_LONG, PACED, Load, Side, build_run, run_load
from bench.work import create_work, sized_sessions
from tests.telemetry.receiver import run_collector

ROUNDS = 5
LONG = FAST_LONG._replace(streams=40)
SHORT = Load(400, 20, 0.0)

TRACING = '\n[tracing]\nenabled = true\nendpoint = "{url}"\n'


def measure_traces(folder: Path, model_url: str, rounds: int = ROUNDS) -> Iterator[Row]:
    """Compare the CPU time of a token with and without traces."""
    raise_file_limit()
    with ExitStack() as stack:
        collector = stack.enter_context(run_collector())
        sides: list[Side] = []
        for name, text in (("off", ""), ("on", TRACING.format(url=collector.url))):
            work = create_work(folder / name, model_url, sized_sessions((1,)))
            seed_database(work)
            with (work.folder / "agentctl.toml").open("a") as file:
                file.write(text)
            place = stack.enter_context(serve_agentctl(work))
            sides.append(Side(place, lambda message, place=place: build_run(place, message)))  # type: ignore[misc]
        for side in sides:
            uvloop.run(run_load(side, FAST._replace(streams=2, tokens=20)))
        # The first batch loads the client.
        collector.wait_for(bool)
        for load, most in ((LONG, 1.02), (PACED, 1.02), (SHORT, 1.25)):
            found: list[list[float]] = [[], []]
            for count in range(rounds):
                for number in (0, 1) if count % 2 == 0 else (1, 0):
                    found[number].append(uvloop.run(run_load(sides[number], load)).cpu * 1e6)
            work_name = f"{load.title}: CPU of a token with traces"
            yield build_ratio_row(work_name, found[1], "without", found[0], " us", at_most(most))
        assert collector.spans


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        rounds = int(sys.argv[1]) if sys.argv[1:] else ROUNDS
        rows = list(measure_traces(Path(directory), f"{url}/v1", rounds))
    print(format_text(rows))
