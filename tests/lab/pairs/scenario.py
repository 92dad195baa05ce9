"""Every two operations at once: one is stopped at each of its points while another runs through.

    python -m tests.lab pairs --engine sqlite --kinds agent,team --seed 1

Two servers in this process work on one database, SQLite or PostgreSQL. A schedule has a scene (a
run that is new, about to pause, paused, decided, in an approved call, about to end, lost, ended, or
waits for another run or for a slot), a first and a second operation. The first one is stopped at
its point N: before and after each write, at each statement, and at each await of its tasks. The
second one runs to its end, or until it waits for the first. Then the first goes on. N counts up
until the first operation ends without reaching it. Schedules of three operations stop two of them,
at random points with a printed seed.

`schedule` has the points, `servers` the servers and their death, `operations` the scenes and the
operations, `queued` those of runs that wait, and what the model endpoint must have seen, `judge`
the rules of a session, and `search` chooses the schedules and prints the table.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from random import Random
from unittest import mock

from tests.kit.model import ModelEndpoint, start_endpoint
from tests.kit.postgres import running_postgres
from tests.lab.pairs import hosted, schedule
from tests.lab.pairs.queued import SCENES, list_kinds
from tests.lab.pairs.search import Table, list_pairs, opened, search_pair, search_three
from tests.lab.pairs.servers import KINDS

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of components, with commas")
    parser.add_argument("--scenes", default=",".join(SCENES), help="scenes, with commas")
    parser.add_argument("--first", help="only this first operation")
    parser.add_argument("--second", help="only this second operation")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    parser.add_argument("--samples", type=int, help="points of each pair; all by default")
    parser.add_argument("--threes", type=int, default=0, help="schedules of three operations")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time")


async def run(options: argparse.Namespace) -> Counter[str]:
    """Search, print the table, and return the violations."""
    logging.disable(logging.CRITICAL)
    endpoint = start_endpoint()
    hosted.URL = endpoint.base_url
    schedule.install(lambda owner, name, value: mock.patch.object(owner, name, value).start())
    try:
        if options.engine == "sqlite":
            return await _search(options, "", endpoint)
        with running_postgres() as url:
            return await _search(options, url, endpoint)
    finally:
        endpoint.stop()


async def _search(options: argparse.Namespace, url: str, endpoint: ModelEndpoint) -> Counter[str]:
    kinds = options.kinds.split(",")
    random = Random(options.seed)
    table = Table()
    end = time.monotonic() + options.seconds
    pairs = [
        pair
        for pair in list_pairs(options.scenes.split(","))
        if options.first in (None, pair[1]) and options.second in (None, pair[2])
    ]
    todo = [(kind, pair) for pair in pairs for kind in list_kinds(pair[0], kinds)]
    random.shuffle(todo)
    print(f"seed {options.seed}, {len(todo)} pairs of {len(kinds)} kinds on {options.engine}")
    while todo or options.threes:
        async with opened(options.engine, url, endpoint, kinds) as arena:
            before = len(table.violations)
            while len(table.violations) == before and (todo or options.threes):
                if time.monotonic() > end:
                    todo = []
                    options.threes = 0
                    break
                if todo:
                    kind, pair = todo.pop()
                    await search_pair(
                        arena, table, kind, pair, random=random, samples=options.samples
                    )
                else:
                    options.threes -= 1
                    await search_three(arena, table, kinds, random)
            if len(table.violations) == before:
                table.violations += await arena.find_remaining()
        for violation in table.violations[before:]:
            print(violation, flush=True)
    print(f"\n{options.engine}, {', '.join(kinds)}, seed {options.seed}")
    print(table.format())
    return Counter(table.violations)
