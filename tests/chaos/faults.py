"""Faults injected into the cluster, and the time until it answers again."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import cycle

import httpx2

from tests.chaos.cluster import Cluster, Server

__all__ = ["BACK_SECONDS", "Outage", "inject_faults"]

BACK_SECONDS = 5.0
"""Maximum time from the return of a database to the first response (docs/security-cases.md R19)."""


@dataclass(frozen=True)
class Outage:
    """An injected fault.

    Attributes:
        fault: description of the fault.
        at: seconds since the start of the experiment.
        back: seconds from the return of the database or server until every running server
            answered a request with data.
    """

    fault: str
    at: float
    back: float


async def inject_faults(cluster: Cluster, until: float, pause: float) -> list[Outage]:
    """Kill servers, crash the database and cut connections in turn.

    Args:
        until: time of `time.monotonic` after which no fault is injected.
        pause: average number of seconds between two faults.
    """
    dice, started_at = random.Random(5), time.monotonic()
    outages = list[Outage]()
    a, b = cluster.servers
    for fault in cycle(("database", a, "cut", "database", b, "both")):
        await asyncio.sleep(pause * dice.uniform(0.5, 1.5))
        if time.monotonic() >= until:
            return outages
        at = time.monotonic() - started_at
        if fault == "database":
            down = dice.choice((0.0, 0.5, 2.0))
            back = await _crash_database(cluster, down)
            outages.append(Outage(f"database crashed, down for {down:g} s", at, back))
        elif fault == "cut":
            await cluster.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'agentctl'"
            )
            outages.append(Outage("all connections cut", at, await _wait_for_answers(cluster)))
        elif fault == "both":
            restart = asyncio.create_task(_restart_server(a, dice))
            await _crash_database(cluster, 0.5)
            outages.append(Outage("server a and the database", at, await restart))
        elif isinstance(fault, Server):
            back = await _restart_server(fault, dice)
            outages.append(Outage(f"server {fault.name} killed", at, back))
    raise AssertionError("a cycle never ends")


async def _crash_database(cluster: Cluster, seconds: float) -> float:
    await cluster.crash_database(seconds)
    return await _wait_for_answers(cluster)


async def _restart_server(server: Server, dice: random.Random) -> float:
    """Kill a server and start it again; return the seconds from the start until it listens."""
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(dice.uniform(0.0, 3.0))
    began = time.monotonic()
    await asyncio.to_thread(_start, server)
    return time.monotonic() - began


def _start(server: Server) -> None:
    """Start a server until it stays up, as a supervisor does: without a database it exits."""
    deadline = time.monotonic() + 60
    while True:
        try:
            server.start()
        except AssertionError:
            assert time.monotonic() < deadline
        else:
            return


async def _wait_for_answers(cluster: Cluster) -> float:
    """Return the seconds until every running server has answered with stored data."""
    began = time.monotonic()
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {cluster.token}"}, timeout=30
    ) as client:
        for server in [server for server in cluster.servers if server.is_running]:
            while server.is_running and not await _answers(client, server):
                await asyncio.sleep(0.02)
    return time.monotonic() - began


async def _answers(client: httpx2.AsyncClient, server: Server) -> bool:
    try:
        return (await client.get(f"{server.url}/runs?limit=1")).status_code == 200
    except httpx2.TransportError:
        return False
