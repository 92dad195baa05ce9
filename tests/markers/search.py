"""A search: runs of both users until a number or a time, with kills of workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from random import Random

from tests.markers.client import Clients
from tests.markers.judge import Outcome, judge_ledger, list_places
from tests.markers.server import Engine, start_marked_server
from tests.markers.text import Marker

__all__ = ["Plan", "search"]


@dataclass(frozen=True)
class Plan:
    """The engine and the limits of a search.

    Attributes:
        runs, seconds: it ends after this number of runs, or after this time.
        places: places of the ledger; the search goes on until each has an entry.
        kill_every: average number of runs between two kills of a worker.
        parallel: number of runs at the same time.
        vendors: True if agents of the libraries of vendors run, too.
    """

    engine: Engine
    runs: int
    seconds: float
    seed: int
    kill_every: int = 200
    parallel: int = 16
    places: frozenset[str] = frozenset()
    vendors: bool = True


def search(plan: Plan) -> Outcome:
    """Start runs, and check all that users, models and tools got."""
    chance = Random(plan.seed)
    users = [Marker(letter).new_run(chance) for letter in "ab"]
    outcome = Outcome()
    subjects = {each.user: f"user-{each}" for each in users}
    with start_marked_server(plan.engine, subjects, plan.vendors) as server:
        began = time.monotonic()
        asyncio.run(_search(plan, Clients(server, users, chance, outcome), chance))
        outcome.seconds = time.monotonic() - began
        outcome.kills = server.kills
        judge_ledger(server.ledger, outcome)
    return outcome


async def _search(plan: Plan, clients: Clients, chance: Random) -> None:
    notes = clients.outcome.notes
    until = time.monotonic() + plan.seconds

    async def start_runs() -> None:
        while time.monotonic() < until and (
            len(notes) < plan.runs or not plan.places <= list_places(clients.server.ledger)
        ):
            await clients.run_next()

    killing = asyncio.create_task(_kill_workers(plan, clients, chance))
    async with clients.open():
        try:
            await asyncio.gather(*(start_runs() for _ in range(plan.parallel)))
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        await clients.read_all()


async def _kill_workers(plan: Plan, clients: Clients, chance: Random) -> None:
    """Kill workers, by the number of runs: the same on a slow machine."""
    while True:
        wanted = len(clients.outcome.notes) + chance.uniform(0.5, 1.5) * plan.kill_every
        while len(clients.outcome.notes) < wanted:
            await asyncio.sleep(0.05)
        await clients.server.kill_worker(chance)
