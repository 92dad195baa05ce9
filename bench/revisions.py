"""Compare the CPU time of this checkout with that of another one, for example the last release.

    git worktree add ../before REVISION
    python -m bench.revisions ../before [ROUNDS]

Both servers run with the installed libraries and take turns: plain runs, tokens that are streamed,
the record of a session, and cancels of an ended run. A ratio above 1 means that this checkout takes
more CPU time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.client import Client, encode_form
from bench.measure import Row, build_ratio_row, format_text, run_rounds
from bench.reads import AGENT, repeat_cancel
from bench.servers import RunningServer, serve_endpoint
from bench.streams import raise_file_limit
from bench.tokens import FAST, PACED, build_run_side, run_load
from bench.work import create_work
from tests.kit.process import base_environment, serve_config

ROUNDS = 9

LOAD_SECONDS = 2

SESSION = "revisions"
SESSION_RUNS = 100
"""The session whose record is read, and the number of its runs."""


def measure_rows(before: Path, folder: Path, model_url: str, rounds: int) -> Iterator[Row]:
    """Serve both checkouts, each with a separate database, and compare the same work."""
    raise_file_limit()
    with ExitStack() as stack:
        places = []
        for name, path in (("this", ""), ("before", str(before.resolve()))):
            work = create_work(folder / name, model_url, [])
            environment = base_environment() | ({"PYTHONPATH": path} if path else {})
            config = work.folder / "agentctl.toml"
            server = stack.enter_context(serve_config(config, environment=environment))
            places.append(RunningServer(server.port, server.process.pid, work))
        yield _compare("plain run", places, _measure_run, rounds)
        yield _compare(f"session of {SESSION_RUNS} runs", places, _measure_session, rounds)
        yield _compare("cancel of an ended run", places, _measure_cancel, rounds)
        for load in (PACED, FAST):
            yield _compare(
                f"token, {load.title}",
                places,
                lambda place, load=load: (  # type: ignore[misc]
                    lambda: uvloop.run(run_load(build_run_side(place), load)).cpu * 1e6
                ),
                rounds,
            )


def _measure_run(place: RunningServer) -> Callable[[], float]:
    load = place.post(f"/agents/{AGENT}/runs", encode_form(stream=False), seconds=LOAD_SECONDS)
    return lambda: 1e6 / load.by_processor()


def _measure_session(place: RunningServer) -> Callable[[], float]:
    with Client(place.port, place.headers) as client:
        for _ in range(SESSION_RUNS):
            client.run(AGENT, SESSION)
    load = place.get(f"/sessions/{SESSION}", seconds=LOAD_SECONDS)
    return lambda: 1e6 / load.by_processor()


def _measure_cancel(place: RunningServer) -> Callable[[], float]:
    load = repeat_cancel(place)
    load.seconds = LOAD_SECONDS
    return lambda: 1e6 / load.by_processor()


def _compare(
    work: str,
    places: list[RunningServer],
    build: Callable[[RunningServer], Callable[[], float]],
    rounds: int,
) -> Row:
    acts = {number: build(place) for number, place in enumerate(places)}
    for act in acts.values():
        act()
    found = run_rounds(acts, rounds)
    return build_ratio_row(work, found[0], "before", found[1], " CPU us")


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    rounds = int(sys.argv[2]) if sys.argv[2:] else ROUNDS
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        print(
            format_text(list(measure_rows(Path(sys.argv[1]), Path(directory), f"{url}/v1", rounds)))
        )
