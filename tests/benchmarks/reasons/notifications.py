"""Followers of runs by one listener, and by a connection of asyncpg for each.

`python -m tests.benchmarks.reasons.notifications` starts a PostgreSQL server. Printed are the
sessions that the followers use, and the milliseconds from a notification until the last follower
has it: the medians of the rounds, and the median of their ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import asyncpg

from agentctl.config.settings import Database
from agentctl.store.postgres.listener import CHANNEL, Listener
from agentctl.store.postgres.thread import ThreadConnection
from agentctl.store.threads import call_in_thread
from tests.postgres_server import run_postgres_server

FOLLOWERS = 50
ROUNDS = 200
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"


class Side:
    """The followers of one side: `receive` is called once for each of them."""

    def __init__(self) -> None:
        self.sessions = 0
        self._missing = 0
        self._complete = asyncio.Event()

    def receive(self, *_: Any) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._complete.set()

    async def measure(self, notify: Callable[[], Awaitable[Any]]) -> float:
        """Return the milliseconds until all have a notification."""
        self._missing = FOLLOWERS
        self._complete.clear()
        began = time.perf_counter()
        await notify()
        await self._complete.wait()
        return (time.perf_counter() - began) * 1e3


async def compare(url: str) -> None:
    """Measure both in turns, and print the table."""
    sender = await asyncpg.connect(url)
    schema = await sender.fetchval("SELECT current_schema()")
    ours = Side()
    theirs = Side()
    thread = ThreadConnection(entry := Database(id="main", url=url))
    listener = Listener(entry, thread)
    first = await sender.fetchval(SESSIONS)
    counts = [
        # Equal methods are one callback.
        listener.watch("run a", lambda _=number: ours.receive())  # type: ignore[misc]
        for number in range(FOLLOWERS)
    ]
    while not counts[0]():
        await asyncio.sleep(0.01)
    ours.sessions = await sender.fetchval(SESSIONS) - first
    connections = [await asyncpg.connect(url) for _ in range(FOLLOWERS)]
    for connection in connections:
        await connection.add_listener("other", theirs.receive)
    theirs.sessions = await sender.fetchval(SESSIONS) - first - ours.sessions
    pairs = []
    for _ in range(ROUNDS):
        own, library = [
            await side.measure(
                lambda channel=channel: sender.execute(  # type: ignore[misc]
                    "SELECT pg_notify($1, $2)", channel, f"{schema} run a"
                )
            )
            for side, channel in ((ours, CHANNEL), (theirs, "other"))
        ]
        pairs.append((own, library))
    print("| followers | agentctl | asyncpg | ratio |\n| --- | ---: | ---: | ---: |")
    print(f"| sessions of {FOLLOWERS} followers | {ours.sessions} | {theirs.sessions} | |")
    medians = [median(side) for side in zip(*pairs, strict=True)]
    ratio = median(one / other for one, other in pairs)
    print(f"| delivery to all, ms | {medians[0]:.2f} | {medians[1]:.2f} | {ratio:.2f} |")
    await listener.close()
    await call_in_thread(thread.close)
    for connection in (sender, *connections):
        await connection.close()


def main() -> None:
    """Print the table."""
    with run_postgres_server() as server:
        asyncio.run(compare(server.url))


if __name__ == "__main__":
    main()
