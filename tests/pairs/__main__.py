"""The search for schedules that break a rule; see `tests.pairs`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from random import Random
from unittest import mock

from tests.endpoint import ModelEndpoint, start_endpoint
from tests.pairs import schedule
from tests.pairs.queued import SCENES, list_kinds
from tests.postgres import running_postgres


def main() -> int:
    """Search, print the table, and return 1 if a rule was broken."""
    from tests.pairs.servers import KINDS

    parser = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of components, with commas")
    parser.add_argument("--scenes", default=",".join(SCENES), help="scenes, with commas")
    parser.add_argument("--first", help="only this first operation")
    parser.add_argument("--second", help="only this second operation")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    parser.add_argument("--samples", type=int, help="points of each pair; all by default")
    parser.add_argument("--threes", type=int, default=0, help="schedules of three operations")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    endpoint = start_endpoint()
    os.environ["PAIRS_MODEL_URL"] = endpoint.base_url
    schedule.install(lambda owner, name, value: mock.patch.object(owner, name, value).start())
    try:
        if options.engine == "sqlite":
            return asyncio.run(_search(options, "", endpoint))
        with running_postgres() as url:
            return asyncio.run(_search(options, url, endpoint))
    finally:
        endpoint.stop()


async def _search(options: argparse.Namespace, url: str, endpoint: ModelEndpoint) -> int:
    from tests.pairs.search import Table, list_pairs, opened, search_pair, search_three

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
                ended = await arena.end_witness()
                if ended != "COMPLETED 1":
                    table.violations.append(f"the witness ended as {ended}")
        for violation in table.violations[before:]:
            print(violation, flush=True)
    print(f"\n{options.engine}, {', '.join(kinds)}, seed {options.seed}")
    print(table.format())
    return 1 if table.violations else 0


if __name__ == "__main__":
    sys.exit(main())
