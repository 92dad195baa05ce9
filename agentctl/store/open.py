"""Open a configured database, and create it if that is allowed.

A file of another program is read but never written to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentctl import errors
from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.store.database import Database

if TYPE_CHECKING:
    from agentctl.config import settings
    from agentctl.store.sqlite.database import SqliteDatabase

__all__ = ["open_database", "open_sqlite"]


def open_database(entry: settings.Database, *, create: bool) -> Database:
    """Open a database: a file at once, a PostgreSQL database when it is first used.

    Args:
        entry: the configuration of the database.
        create: create a missing file, in an existing folder, or missing tables.

    Raises:
        Unavailable: the database does not exist, cannot be read, or belongs to another program.
        SchemaMismatch: its schema is older or newer than this code.
    """
    if is_sqlite_url(entry.url):
        return open_sqlite(entry.id, sqlite_path(entry.url), create=create)
    from agentctl.store.postgres.database import PostgresDatabase

    return PostgresDatabase(entry, create=create)


def open_sqlite(id: str, path: Path, *, create: bool) -> SqliteDatabase:
    """Open the database in a file. Raises the errors of `open_database`."""
    import apsw

    from agentctl.store.schema import check_version
    from agentctl.store.sqlite.connection import to_public_error
    from agentctl.store.sqlite.database import SqliteDatabase
    from agentctl.store.sqlite.file import add_path, build_cannot_create, check_file
    from agentctl.store.sqlite.schema import create_if_absent, require_version

    check_file(path, create=create)
    if create:
        try:
            create_if_absent(path)
        except apsw.Error as error:
            raise add_path(to_public_error(error, id), path) from None
        except OSError as error:
            raise build_cannot_create(path, error) from None
    database = SqliteDatabase(id, path)
    try:
        check_version(database.read_blocking(require_version(path)), str(path))
    except errors.AgentctlError as error:
        database.close_blocking()
        raise add_path(error, path) from None
    return database
