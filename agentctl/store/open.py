"""From a configured database to an open one: made when it may be, refused when it is not ours.

A file that is not ours is looked at and never written to; what is wrong is one clear line.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl import errors
from agentctl.records.times import now
from agentctl.store.database import Row, Sql, Statement, Steps, unit

if TYPE_CHECKING:
    import apsw

    from agentctl.config import settings
    from agentctl.store.sqlite import SqliteDatabase

__all__ = ["SCHEMA_VERSION", "TABLES", "check_schema", "migrations", "open_database"]

TABLES = frozenset(
    {
        "audit_log",
        "idempotency",
        "run_events",
        "runs",
        "schema_version",
        "service_accounts",
        "sessions",
        "workers",
    }
)

FOLDER = Path(__file__).parent / "migrations"

SCHEMA_VERSION = max(int(file.name[:4]) for file in FOLDER.glob("*.sqlite.sql"))
"""Number of the newest migration."""

CREATION_SECONDS = 10.0
"""How long to wait for another process that makes the same database."""

_SQLITE = "sqlite:///"

_MAGIC = b"SQLite format 3\x00"

_VERSION = Sql("SELECT max(version) FROM schema_version")

_TABLE_NAMES = Sql("SELECT name FROM sqlite_master WHERE type = 'table'")


def open_database(entry: settings.Database, *, create: bool) -> SqliteDatabase:
    """Open one database and check its schema.

    Args:
        entry: its id and url, `sqlite:////absolute/path`.
        create: make the file when there is none; its folder must exist.

    Raises:
        Unavailable: there is no database, or the file cannot be read or is not ours.
        SchemaMismatch: its schema is older or newer than this code.
        InvalidConfiguration: the url is not one of SQLite.
    """
    if not entry.url.startswith(_SQLITE):
        raise errors.InvalidConfiguration(
            "The database's url is not supported",
            cause=f"database {entry.id!r}",
            hint="use sqlite:///path",
        )
    return _open_sqlite(entry.id, Path(entry.url.removeprefix(_SQLITE)), create)


def check_schema(database: SqliteDatabase) -> None:
    """Refuse a database whose schema this code does not know.

    Raises:
        Unavailable: it cannot be read, or it is not ours.
        SchemaMismatch: it is older or newer than this code.
    """
    names = {name for (name,) in database.read_now(_rows(_TABLE_NAMES))}
    if not names:
        raise _nothing_yet(database.path)
    if not names >= TABLES:
        raise _not_ours(database.path)
    version: int = database.read_now(_rows(_VERSION))[0][0] or 0
    if version != SCHEMA_VERSION:
        age = "newer" if version > SCHEMA_VERSION else "older"
        raise errors.SchemaMismatch(
            f"The database's schema is {age} than this agentctl",
            cause=f"{database.path} has schema {version}; this agentctl reads {SCHEMA_VERSION}",
            hint="run it with the agentctl that made it",
        )


def migrations(engine: str) -> list[str]:
    """The SQL of every migration of an engine (`sqlite` or `postgres`), the first one first."""
    return [file.read_text("utf-8") for file in sorted(FOLDER.glob(f"*.{engine}.sql"))]


@unit
def _rows(sql: Sql) -> Steps[list[Row]]:
    rows: list[Row] = yield Statement(sql)
    return rows


def _open_sqlite(id: str, path: Path, create: bool) -> SqliteDatabase:
    import apsw

    from agentctl.store.sqlite import SqliteDatabase
    from agentctl.store.sqlite_connection import public_error

    _check_place(path, create)
    if create:
        try:
            _create_if_absent(path)
        except apsw.Error as error:
            raise _with_path(public_error(error, id), path) from None
        except OSError as error:
            raise _cannot_create(path, error) from None
    database = SqliteDatabase(id, path)
    try:
        check_schema(database)
    except errors.AgentctlError as error:
        database.close_now()
        raise _with_path(error, path) from None
    return database


def _check_place(path: Path, create: bool) -> None:
    """Say plainly what is wrong with the path, where SQLite would only fail to open it."""
    if path.is_dir():
        raise errors.Unavailable("The database cannot be opened", cause=f"{path} is a directory")
    if path.exists():
        _check_header(path)
        return
    if not create:
        raise _nothing_yet(path)
    if not path.parent.is_dir():
        raise errors.Unavailable(
            "The database cannot be created",
            cause=f"the folder {path.parent} does not exist",
            hint="make the folder, or change [[databases]] url",
        )


def _check_header(path: Path) -> None:
    """Refuse what does not begin as a database; SQLite would take a file of one byte for empty."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_MAGIC))
    except OSError as error:
        raise errors.Unavailable(
            "The database cannot be opened",
            cause=f"{path}: {os.strerror(error.errno or 0)}",
            hint="check the permissions of the file",
        ) from None
    if begin and begin != _MAGIC:
        raise errors.Unavailable(
            "The file is not a database",
            cause=f"{path} holds something else; it was left as it is",
            hint="name another file in [[databases]] url",
        )


def _create_if_absent(path: Path) -> None:
    """Make the file, for its owner's eyes only, and the schema in it, unless it holds anything.

    Several processes may do this at once: one of them fills the file, the others wait for it.
    """
    import apsw

    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    deadline = time.monotonic() + CREATION_SECONDS
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(int(CREATION_SECONDS * 1000))
        while not _fill(connection):
            if time.monotonic() > deadline:
                raise apsw.BusyError("another process holds the new file")
            time.sleep(0.01)
    finally:
        connection.close(True)


def _fill(connection: apsw.Connection) -> bool:
    """Set the journal mode and apply every migration to a file without tables.

    Returns:
        False when another process is at it, and this is to be tried again.

    """
    import apsw

    try:
        # The change of the journal mode needs a lock that SQLite does not wait for.
        if connection.execute(_TABLE_NAMES).fetchall():
            return True
        connection.pragma("journal_mode", "WAL")
        connection.execute("BEGIN IMMEDIATE")
    except (apsw.BusyError, apsw.LockedError):
        return False
    if not connection.execute(_TABLE_NAMES).fetchall():
        for number, text in enumerate(migrations("sqlite"), start=1):
            connection.execute(text).fetchall()
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (number, now()))
    connection.execute("COMMIT")
    return True


def _nothing_yet(path: Path) -> errors.Unavailable:
    return errors.Unavailable(
        "There is no database yet",
        cause=f"{path} is not there",
        hint="`agentctl serve` creates it",
    )


def _not_ours(path: Path) -> errors.Unavailable:
    return errors.Unavailable(
        "The file is not an agentctl database",
        cause=f"{path} holds something else; it was left as it is",
        hint="name another file in [[databases]] url",
    )


def _cannot_create(path: Path, error: OSError) -> errors.Unavailable:
    return errors.Unavailable(
        "The database cannot be created",
        cause=f"{path}: {os.strerror(error.errno or 0)}",
        hint="check the permissions of the folder",
    )


def _with_path(error: errors.AgentctlError, path: Path) -> errors.AgentctlError:
    """The same failure, its cause naming the file: at the start that is what a user can mend."""
    if isinstance(error, errors.Unavailable) and error.cause and str(path) not in error.cause:
        return errors.Unavailable(error.detail, cause=str(path), hint=error.hint)
    return error
