"""Faults injected into the cluster, and the time until it answers again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle

import httpx2

from tests.chaos.cluster import Cluster, PostgresCluster, Server, SqliteCluster
from tests.conditions import PATIENCE

__all__ = ["BACK_SECONDS", "Outage", "inject_faults"]

BACK_SECONDS = 5.0
"""Maximum time from the return of a database to the first response (security case R19)."""

LOST_SECONDS = 20.0
"""Time without a heartbeat after which other workers have ended the runs of a worker."""

Fault = Callable[[], Awaitable[tuple[str, float]]]
"""Injects a fault; returns its description and the seconds until the servers answered again."""


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
    """Inject the faults of the cluster's engine in turn.

    Args:
        until: time of `time.monotonic` after which no fault is injected.
        pause: average number of seconds between two faults.
    """
    dice = random.Random(5)
    started_at = time.monotonic()
    outages = list[Outage]()
    if isinstance(cluster, SqliteCluster):
        faults = _list_sqlite_faults(cluster, dice)
    else:
        assert isinstance(cluster, PostgresCluster)
        faults = _list_postgres_faults(cluster, dice)
    for inject in cycle(faults):
        await asyncio.sleep(pause * dice.uniform(0.5, 1.5))
        if time.monotonic() >= until:
            return outages
        at = time.monotonic() - started_at
        fault, back = await inject()
        outages.append(Outage(fault, at, back))
    raise AssertionError("a cycle never ends")


def _list_postgres_faults(cluster: PostgresCluster, dice: random.Random) -> list[Fault]:
    """Return the faults of two servers and their database."""
    a, b = cluster.servers

    async def crash_database() -> tuple[str, float]:
        seconds = dice.choice((0.0, 0.5, 2.0))
        await cluster.crash_database(seconds)
        return f"database crashed, down for {seconds:g} s", await _wait_for_answers(cluster)

    async def kill_a() -> tuple[str, float]:
        return "server a killed", await _restart_server(a, dice)

    async def kill_b() -> tuple[str, float]:
        return "server b killed", await _restart_server(b, dice)

    async def cut_connections() -> tuple[str, float]:
        await cluster.cut_connections()
        return "all connections cut", await _wait_for_answers(cluster)

    async def kill_and_crash() -> tuple[str, float]:
        restart = asyncio.create_task(_restart_server(a, dice))
        await cluster.crash_database(0.5)
        await _wait_for_answers(cluster)
        return "server a and the database", await restart

    async def restart_pooler() -> tuple[str, float]:
        seconds = dice.choice((0.0, 0.5, 2.0))
        await cluster.restart_pooler(seconds)
        return f"pooler killed, down for {seconds:g} s", await _wait_for_answers(cluster)

    if cluster.pooler is not None:
        return [crash_database, restart_pooler, kill_a, cut_connections, restart_pooler]
    return [crash_database, kill_a, cut_connections, crash_database, kill_b, kill_and_crash]


def _list_sqlite_faults(cluster: SqliteCluster, dice: random.Random) -> list[Fault]:
    """Return the faults of one server with several workers."""

    async def kill_worker() -> tuple[str, float]:
        os.kill(dice.choice(cluster.live_workers()), signal.SIGKILL)
        return "a worker killed", await _wait_for_answers(cluster)

    async def stop_worker() -> tuple[str, float]:
        seconds = dice.choice((1.0, LOST_SECONDS))
        await cluster.stop_worker(dice.choice(cluster.live_workers()), seconds)
        return f"a worker stopped for {seconds:g} s", await _wait_for_answers(cluster)

    async def lock_database() -> tuple[str, float]:
        seconds = dice.choice((0.5, 2.0))
        await cluster.lock_database(seconds)
        return f"database locked for {seconds:g} s", await _wait_for_answers(cluster)

    async def kill_server() -> tuple[str, float]:
        return "all workers and their parent killed", await _restart_server(
            cluster.servers[0], dice
        )

    return [kill_worker, lock_database, stop_worker, kill_worker, kill_server]


async def _restart_server(server: Server, dice: random.Random) -> float:
    """Kill a server and start it again; return the seconds from the start until it listens."""
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(dice.uniform(0.0, 3.0))
    began = time.monotonic()
    await asyncio.to_thread(_start, server)
    return time.monotonic() - began


def _start(server: Server) -> None:
    """Start a server until it stays up, as a supervisor does: without a database it exits."""
    deadline = time.monotonic() + PATIENCE
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
        headers={"Authorization": f"Bearer {cluster.token}"}, timeout=PATIENCE
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
