"""Migrations of a configured database, and reads that work before a migration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.schema import FINISH_UPGRADE, Engine, Migration, StoredVersion, load_migrations
from agentctl.store.threads import call_in_thread

if TYPE_CHECKING:
    from agentctl.config.settings import Database as Entry

T = TypeVar("T")

Applied = Callable[[Migration], None]

LONGEST_SECONDS = 86_400.0
"""Maximum duration of a statement of a migration: an index of a large table takes long."""


_VERSION = Sql("SELECT max(version), max(compatible_from) FROM schema_version")
_FINISH = Sql(FINISH_UPGRADE)


def get_engine(entry: Entry) -> Engine:
    """Return the engine of a configured database."""
    return "sqlite" if is_sqlite_url(entry.url) else "postgres"


async def read_version(entry: Entry) -> StoredVersion | None:
    """Return the schema version of a database; None if the database does not exist yet.

    Raises:
        Unavailable: the database cannot be read, or belongs to another program.
    """
    if not is_sqlite_url(entry.url):
        from agentctl.store.postgres.connection import open_connection
        from agentctl.store.postgres.schema import has_tables
        from agentctl.store.postgres.schema import read_version as read

        async with open_connection(entry) as connection:
            return await read(connection) if await has_tables(connection, entry) else None
    from agentctl.store.sqlite.connection import run_unit
    from agentctl.store.sqlite.file import build_emptied, check_file, has_been_used
    from agentctl.store.sqlite.schema import read_stored_version as stored
    from agentctl.store.sqlite.thread import run_on_thread

    path = sqlite_path(entry.url)
    check_file(path, create=True)
    if not path.exists():
        return None
    version = await run_on_thread(path, lambda connection, _: run_unit(connection, stored(path)))
    if version is None and has_been_used(path):
        raise build_emptied(path)
    return version


@unit
def read_current_version() -> Steps[StoredVersion]:
    """Return the schema version of an open database."""
    ((number, compatible_from),) = yield Statement(_VERSION)
    return StoredVersion(number, compatible_from)


def exclude_earlier_programs() -> Work[None]:
    """Allow what programs of earlier releases cannot read; from then on they refuse to start."""
    return _FINISH.execute()


async def read_unbounded(entry: Entry, work: Work[T]) -> T:
    """Run a unit that only reads, on one snapshot, without a time limit. Raises Unavailable."""
    if is_sqlite_url(entry.url):
        from agentctl.store.sqlite.connection import run_unit_on_snapshot
        from agentctl.store.sqlite.thread import run_on_thread

        path = sqlite_path(entry.url)
        return await run_on_thread(
            path, lambda connection, _: run_unit_on_snapshot(connection, work)
        )
    from dataclasses import replace

    from agentctl.store.postgres.database import PostgresDatabase

    database = PostgresDatabase(replace(entry, statement_seconds=LONGEST_SECONDS), create=False)
    try:
        return await database.read(work)
    finally:
        await database.close()


async def migrate(entry: Entry, applied: Applied) -> None:
    """Apply the pending migrations; create a missing database.

    A newer schema that this code works with is not changed.

    Args:
        entry: the configuration of the database.
        applied: called with each migration after it is durable, on any thread.

    Raises:
        SchemaMismatch: the schema is newer than this code, and not compatible with it.
        Unavailable: the database cannot be used, or belongs to another program.
    """
    if not is_sqlite_url(entry.url):
        from dataclasses import replace

        from agentctl.store.postgres.connection import open_connection
        from agentctl.store.postgres.schema import apply_pending

        async with open_connection(replace(entry, statement_seconds=LONGEST_SECONDS)) as connection:
            await apply_pending(connection, entry, applied)
        return
    from agentctl.store.sqlite.file import check_file
    from agentctl.store.sqlite.schema import create_file
    from agentctl.store.sqlite.schema import migrate as migrate_file

    path = sqlite_path(entry.url)
    check_file(path, create=True)
    if await call_in_thread(create_file, entry.id, path):
        for migration in load_migrations("sqlite"):
            applied(migration)
        return
    await migrate_file(path, applied)
