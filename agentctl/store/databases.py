"""The configured databases, each opened on first use (docs/internals/architecture.md "The store").

A command that only reads the configuration opens no database. A file of another program is read
but never written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl import errors
from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.store.database import Database
from agentctl.store.outbox import Outbox
from agentctl.store.schema import check_version

if TYPE_CHECKING:
    from agentctl.config import settings
    from agentctl.store.sqlite.database import SqliteDatabase


def open_database(entry: settings.Database, *, create: bool) -> Database:
    """Open a database: a file at once, a PostgreSQL database when it is first used.

    Args:
        create: create a missing file, in an existing folder, or missing tables.

    Raises:
        Unavailable: the database does not exist, cannot be read, or belongs to another program.
        SchemaMismatch: this code does not work with its schema (`schema.check_version`).
    """
    if is_sqlite_url(entry.url):
        return open_sqlite(entry.id, sqlite_path(entry.url), create=create)
    from agentctl.store.postgres.database import PostgresDatabase

    return PostgresDatabase(entry, create=create)


def open_sqlite(id: str, path: Path, *, create: bool) -> SqliteDatabase:
    """Open the database in a file. Raises the errors of `open_database`."""
    from agentctl.store.sqlite.connection import add_path, check_file, mark_as_used
    from agentctl.store.sqlite.database import SqliteDatabase
    from agentctl.store.sqlite.schema import create_file, require_version

    check_file(path, create=create)
    if create:
        create_file(id, path)

    database = SqliteDatabase(id, path)
    try:
        database.version = database.read_blocking(require_version(path))
        check_version(database.version, str(path))
    except errors.AgentctlError as error:
        database.close_blocking()
        raise add_path(error, path) from None

    if create:
        mark_as_used(path)
    return database


class Databases(Mapping[str, Database]):
    """Databases by id, in the order of the configuration, the default database first.

    Access to a database raises the errors of `open_database`.

    Args:
        create: create the file or the tables of a missing database.
    """

    def __init__(self, configured: settings.Settings, *, create: bool) -> None:
        self.quotas = configured.quotas
        """The table `[quotas]`."""

        self.outbox = Outbox(configured)
        """The webhooks of the configuration, which all databases share."""

        self._entries = {entry.id: entry for entry in configured.databases}
        self._create = create
        self._open: dict[str, Database] = {}

    def __getitem__(self, database_id: str) -> Database:
        if database_id not in self._open:
            database = open_database(self._entries[database_id], create=self._create)
            database.outbox = self.outbox
            self._open[database_id] = database
        return self._open[database_id]

    @property
    def system(self) -> Database:
        """The first database, which has the workers, the service accounts and the audit log."""
        return self[next(iter(self._entries))]

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
