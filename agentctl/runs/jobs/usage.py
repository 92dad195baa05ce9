"""The sums of usage: the process that sweeps adds ended runs to them (decision 104)."""

from __future__ import annotations

import asyncio

from agentctl.runs.gate.budgets import Prices
from agentctl.store.databases import Databases
from agentctl.store.repositories import usage

KEEP_HOURS = 32 * 24
"""Hours for which the sums of single hours are kept."""


class UsageSums:
    """The sums of the open databases."""

    def __init__(self, databases: Databases, prices: Prices) -> None:
        self._databases = databases
        self._prices = prices

    async def add_ended_runs(self) -> None:
        """Add all runs that have ended to the sums."""
        for database in self._databases.get_open().values():
            if not await database.read(usage.has_waiting()):
                continue

            # Each call adds at most `FOLD_ROWS` runs, so that other writers get their turn.
            while await self._prices.run(usage.fold, database.write) == usage.FOLD_ROWS:
                pass

    async def count_earlier_runs(self, seconds: float) -> None:
        """Count ended runs that a server of an earlier version has not counted, for some time."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        for database in self._databases.get_open().values():
            while await database.read(usage.has_uncounted()) and clock() < end:
                await database.write(usage.count_earlier())
                await self.add_ended_runs()
