"""The rows and hashes of each table of a database, read with connections of a copy."""

from __future__ import annotations

from agentctl.config.databases import is_sqlite_url
from agentctl.config.settings import Database
from agentctl.store.copying.postgres import open_target
from agentctl.store.copying.sqlite import open_source
from agentctl.store.copying.tables import TableSum, load_tables


async def add_up(entry: Database) -> dict[str, TableSum]:
    """Return the sum of each table that is copied. No process may use a SQLite file meanwhile."""
    sums = {table.name: TableSum() for table in load_tables()}
    if is_sqlite_url(entry.url):
        async with open_source(entry) as source:
            for table in load_tables():
                async for rows in source.scan(table):
                    sums[table.name].add(rows)
        return sums

    async with open_target(entry) as target, target.transaction():
        for table in load_tables():
            async for rows in target.scan(table):
                sums[table.name].add(rows)
    return sums
