"""A chaos experiment, from an empty database to the consistency check."""

from __future__ import annotations

import asyncio
import sys
import time

from tests.chaos.clients import Client
from tests.chaos.cluster import Cluster, Engine, start_cluster
from tests.chaos.consistency import check_consistency, wait_until_idle
from tests.chaos.faults import inject_faults
from tests.chaos.ledger import Ledger
from tests.chaos.report import Result
from tests.conditions import PATIENCE

__all__ = ["run_chaos"]

CALM_SECONDS = 3.0
"""Time without new faults at the end of the load."""


async def run_chaos(
    engine: Engine, seconds: float, clients: int, *, pause: float, durable: bool = True
) -> Result:
    """Run clients while faults are injected, then check the stored data.

    Args:
        seconds: duration of the load.
        clients: number of concurrent clients.
        pause: average number of seconds between two faults.
        durable: True if PostgreSQL flushes commits to disk.
    """
    ledger = Ledger()
    async with start_cluster(engine, durable=durable) as cluster:
        until = time.monotonic() + seconds
        faults = asyncio.create_task(inject_faults(cluster, until - CALM_SECONDS, pause))
        tasks = [
            asyncio.create_task(Client(number, cluster, ledger).work(until, clients))
            for number in range(clients)
        ]
        done, late = await asyncio.wait(tasks, timeout=seconds + PATIENCE)
        for task in done:
            task.result()
        for task in late:
            ledger.violations["clients that hang"] += 1
            task.print_stack(limit=4)
            task.cancel()
        outages = await faults
        idle_after = await wait_until_idle(cluster, ledger)
        await check_consistency(cluster, ledger)
        lines, tracebacks = _count_log_lines(cluster)
    return Result(seconds, clients, ledger, outages, idle_after, lines, tracebacks)


def _count_log_lines(cluster: Cluster) -> tuple[int, int]:
    """Return the numbers of lines and tracebacks in all server logs; print each traceback."""
    texts = [log.read_text() for server in cluster.servers for log in server.logs]
    for text in texts:
        if "Traceback" in text:
            print(text[max(text.index("Traceback") - 500, 0) :][:4_000], file=sys.stderr)
    return sum(len(text.splitlines()) for text in texts), sum(
        text.count("Traceback") for text in texts
    )
