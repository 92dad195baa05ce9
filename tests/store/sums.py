"""The rows and hashes of each table of a database, read without the incremental sums of a copy."""

from __future__ import annotations

from agentctl.config.databases import is_sqlite_url
from agentctl.config.settings import Database
from agentctl.store.copying.postgres import open_target
from agentctl.store.copying.sqlite import open_source
from agentctl.store.copying.tables import TableSum, load_tables


async def add_up(entry: Database) -> dict[str, TableSum]:
    """Return the sum of each table that is copied."""
    found = dict[str, TableSum]()
    opened = open_source(entry) if is_sqlite_url(entry.url) else open_target(entry)
    async with opened as side, side.snapshot():
        for table in load_tables():
            found[table.name] = TableSum()
            async for rows in side.scan(table):
                found[table.name].add(rows)
    return found
