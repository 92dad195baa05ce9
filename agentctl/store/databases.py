"""The configured databases, each opened on first use (docs/decisions/0012).

A command that only reads the configuration opens no database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING

from agentctl.store.database import Database
from agentctl.store.open import open_database

if TYPE_CHECKING:
    from agentctl.config import settings

__all__ = ["Databases"]


class Databases(Mapping[str, Database]):
    """Databases by id, in the order of the configuration, the default database first.

    Access to a database raises the errors of `open.open_database`.

    Args:
        configured: the settings.
        create: create the file or the tables of a missing database.
    """

    def __init__(self, configured: settings.Settings, *, create: bool) -> None:
        self._entries = {entry.id: entry for entry in configured.databases}
        self._create = create
        self._open: dict[str, Database] = {}

    def __getitem__(self, database_id: str) -> Database:
        if database_id not in self._open:
            self._open[database_id] = open_database(self._entries[database_id], create=self._create)
        return self._open[database_id]

    @property
    def system(self) -> Database:
        """The first database, which has the workers, the service accounts and the audit log."""
        return self[next(iter(self._entries))]

    @property
    def ids(self) -> Set[str]:
        """The configured ids. (`in` on the mapping itself would open the database.)"""
        return self._entries.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get_open(self) -> dict[str, Database]:
        """Return the open databases by id."""
        return dict(self._open)

    async def open_all(self) -> None:
        """Open all databases, and check that they answer."""
        for database in self.values():
            await database.check()

    async def close(self) -> None:
        """Close the open databases."""
        while self._open:
            await self._open.popitem()[1].close()
