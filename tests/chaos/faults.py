"""What goes wrong on the way, and how long it takes until a request is answered again."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import cycle

import httpx2

from tests.chaos.stage import Cluster, Server

__all__ = ["BACK_SECONDS", "Outage", "inject_faults"]

BACK_SECONDS = 5.0
"""How long after its return a database may be of no use (security.md R19)."""


@dataclass(frozen=True)
class Outage:
    """One thing that went wrong.

    Attributes:
        what: which.
        at: seconds from the beginning.
        back: seconds from the return of what was away to the first answer with data, at each server
            that was up.
    """

    what: str
    at: float
    back: float


async def inject_faults(stage: Cluster, until: float, pause: float) -> list[Outage]:
    """Kill servers, crash the database and cut connections by turns, until that time.

    Args:
        until: of `time.monotonic`; nothing begins after that.
        pause: seconds between two, and half of that at least.
    """
    dice, began = random.Random(5), time.monotonic()
    seen = list[Outage]()
    a, b = stage.servers
    for what in cycle(("database", a, "cut", "database", b, "both")):
        await asyncio.sleep(pause * dice.uniform(0.5, 1.5))
        if time.monotonic() >= until:
            return seen
        at = time.monotonic() - began
        if what == "database":
            away = dice.choice((0.0, 0.5, 2.0))
            back = await _database_crashes(stage, away)
            seen.append(Outage(f"database crashed, away for {away:g} s", at, back))
        elif what == "cut":
            await stage.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'agentctl'"
            )
            seen.append(Outage("all connections cut", at, await _answering(stage)))
        elif what == "both":
            dying = asyncio.create_task(_server_dies(stage, a, dice))
            await _database_crashes(stage, 0.5)
            seen.append(Outage("server a and the database", at, await dying))
        elif isinstance(what, Server):
            back = await _server_dies(stage, what, dice)
            seen.append(Outage(f"server {what.name} killed", at, back))
    raise AssertionError("a cycle never ends")


async def _database_crashes(stage: Cluster, seconds: float) -> float:
    await stage.crash_database(seconds)
    return await _answering(stage)


async def _server_dies(stage: Cluster, server: Server, dice: random.Random) -> float:
    """Time from the start of the new one until it answers: it listens when it can."""
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(dice.uniform(0.0, 3.0))
    began = time.monotonic()
    await asyncio.to_thread(_start, server)
    return time.monotonic() - began


def _start(server: Server) -> None:
    """A server that finds no database ends; whoever runs it starts it again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            server.start()
        except AssertionError:
            assert time.monotonic() < deadline
        else:
            return


async def _answering(stage: Cluster) -> float:
    """Seconds until every server that is up has answered with what is stored."""
    began = time.monotonic()
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {stage.token}"}, timeout=30
    ) as client:
        for server in [server for server in stage.servers if server.up]:
            while server.up and not await _answers(client, server):
                await asyncio.sleep(0.02)
    return time.monotonic() - began


async def _answers(client: httpx2.AsyncClient, server: Server) -> bool:
    try:
        return (await client.get(f"{server.url}/runs?limit=1")).status_code == 200
    except httpx2.TransportError:
        return False
