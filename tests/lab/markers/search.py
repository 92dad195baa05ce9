"""A search: runs of both users until a number or a time, with kills of workers.

    python -m tests.lab markers --runs 10000 --seed 1

Two users start runs of every kind of agent, through every interface, on reused connections of every
kind: model endpoints over HTTP and TLS, MCP servers, databases, and one pool of client connections.
Meanwhile runs are cancelled and time out, clients disconnect, models fail in the middle of their
answers, and workers are killed. Every text of a user has a random marker. The model endpoint, the
MCP servers and the tools write a ledger of what they get, and the client keeps what it receives.
The ledger and the client may find markers of one user and session only, and a tool only that of the
run that calls it. An answer may have text of another run of its session, whose history the model
gets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.kit.conditions import wait_until
from tests.lab.disturbances import DISTURBANCES
from tests.lab.judge import LIVE, judge_world
from tests.lab.markers.client import Clients
from tests.lab.markers.judge import Outcome, judge_ledger, list_places
from tests.lab.markers.text import Marker
from tests.lab.markers.world import LAYOUTS, open_marked_world
from tests.lab.world import World

__all__ = ["Plan", "add_options", "run", "search"]


@dataclass(frozen=True)
class Plan:
    """The engine and the limits of a search.

    Attributes:
        engine: one of `LAYOUTS`.
        deployment: that of the server, instead of `LAYOUTS[engine]`.
        runs, seconds: it ends after this number of runs, or after this time.
        places: places of the ledger; the search goes on until each has an entry.
        kill_every: average number of runs between two kills of a worker.
        parallel: number of runs at the same time.
        vendors: True if agents of the libraries of vendors run, too.
        run_seconds: the time limit of a run, by which it ends if its model does not answer.
    """

    engine: str
    runs: int
    seconds: float
    seed: int
    kill_every: int = 200
    parallel: int = 16
    places: frozenset[str] = frozenset()
    vendors: bool = True
    run_seconds: int = 8
    deployment: str = ""


async def search(plan: Plan) -> Outcome:
    """Start runs, and check all that users, models and tools got."""
    chance = Random(plan.seed)
    users = [Marker(letter).new_run(chance) for letter in "ab"]
    outcome = Outcome()
    subjects = {each.user: f"user-{each}" for each in users}
    deployment = plan.deployment or LAYOUTS[plan.engine]
    async with open_marked_world(
        deployment, subjects, vendors=plan.vendors, run_seconds=plan.run_seconds
    ) as marked:
        world = marked.world
        began = time.monotonic()
        clients = Clients(marked, users, chance, outcome)
        await _search(plan, clients, world)
        outcome.seconds = time.monotonic() - began
        judge_ledger(world.ledger, outcome)

        async def has_ended() -> bool:
            return not await world.rows(f"SELECT 1 FROM runs WHERE {LIVE}")

        await wait_until(has_ended)
        # The libraries of agents raise what their models answer wrongly.
        for violation, count in (await judge_world(world, code_fails=True)).items():
            outcome.report(f"{count} times: {violation}")
    return outcome


async def _search(plan: Plan, clients: Clients, world: World) -> None:
    notes = clients.outcome.notes
    until = time.monotonic() + plan.seconds

    async def start_runs() -> None:
        while time.monotonic() < until and (
            len(notes) < plan.runs or not plan.places <= list_places(world.ledger)
        ):
            await clients.run_next()

    killing = asyncio.create_task(_kill_workers(plan, clients, world))
    async with clients.open():
        try:
            await asyncio.gather(*(start_runs() for _ in range(plan.parallel)))
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        await clients.read_all()


async def _kill_workers(plan: Plan, clients: Clients, world: World) -> None:
    """Kill workers, by the number of runs: the same on a slow machine."""
    notes = clients.outcome.notes
    while True:
        wanted = len(notes) + world.dice.uniform(0.5, 1.5) * plan.kill_every
        while len(notes) < wanted:
            await asyncio.sleep(0.05)
        async with DISTURBANCES["worker killed"](world, 0.0):
            clients.outcome.kills += 1


def add_options(parser: argparse.ArgumentParser) -> None:
    engines = tuple(LAYOUTS)
    parser.add_argument("--engine", choices=(*engines, "both"), default="both")
    parser.add_argument("--runs", type=int, help="runs of all engines together; default 10000")
    parser.add_argument("--seconds", type=float, help="end after this time instead")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    parser.add_argument("--kill-every", type=int, default=200, help="runs between two kills")
    parser.add_argument("--parallel", type=int, default=16, help="runs at the same time")


async def run(options: argparse.Namespace) -> Counter[str]:
    """Search on each engine, print the reports, and return what was found."""
    engines = tuple(LAYOUTS) if options.engine == "both" else (options.engine,)
    runs = options.runs or (10_000 if options.seconds is None else sys.maxsize)
    seconds = 1e9 if options.seconds is None else options.seconds
    found: Counter[str] = Counter()
    for engine in engines:
        plan = Plan(
            engine,
            runs // len(engines),
            seconds / len(engines),
            options.seed,
            options.kill_every,
            options.parallel,
        )
        outcome = await search(plan)
        print(f"\n{engine}, seed {options.seed}: {outcome.format()}", flush=True)
        found.update(outcome.violations)
    return found
