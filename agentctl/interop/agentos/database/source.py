"""The tables of an AgentOS database, found by their columns, in a file or on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import apsw

from agentctl import errors
from agentctl.config.databases import display_url, is_sqlite_url, sqlite_path
from agentctl.config.settings import Database
from agentctl.light_dataclass import dataclass

Row = tuple[Any, ...]

_SESSION_COLUMNS = frozenset(
    {"session_id", "session_type", "agent_id", "team_id", "workflow_id", "session_data"}
)
_RUN_COLUMNS = frozenset({"run_id", "session_id", "run_data", "run_index"})
_MEMORY_COLUMNS = frozenset({"memory_id", "memory", "topics", "user_id"})
_OUR_TABLES = frozenset({"schema_version", "run_events", "idempotency"})
"""Tables by which a database of agentctl is recognised."""

DEFAULT_SESSIONS = "agno_sessions"
DEFAULT_RUNS = "agno_runs"
DEFAULT_MEMORIES = "agno_memories"
DEFAULT_SCHEMA = "ai"

STATEMENT_SECONDS = 60.0

_MAGIC = b"SQLite format 3\0"
_WAL_VERSION = 2
"""The format version in the header of a file in WAL mode."""

WAIT_MILLISECONDS = 5_000
ATTEMPTS = 3

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a database; None for those that it does not have.

    Attributes:
        schema: the schema of PostgreSQL; empty for a file.
        has_legacy_runs: True if the sessions have a column with their runs, as those of release 2.
        others: the other tables, whose content has no place in agentctl.
        place: the file or the URL.
    """

    schema: str
    sessions: str
    runs: str | None
    memories: str | None
    has_legacy_runs: bool
    others: tuple[str, ...]
    place: str

    @property
    def name(self) -> str:
        """The product, with its release as far as the tables show it."""
        return "AgentOS 3" if self.runs is not None else "AgentOS 2"

    def quote(self, table: str) -> str:
        """Return the name of a table for a statement."""
        names = [self.schema, table] if self.schema else [table]
        return ".".join('"' + name.replace('"', '""') + '"' for name in names)


class Source(Protocol):
    """A database that is open for reading.

    Statements have `?` for parameters. Text of any column may be bytes.
    """

    async def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a SELECT."""
        ...


class _ServerSource:
    """A PostgreSQL database, in a transaction that cannot write."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._name = name

    async def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        from agentctl.store.postgres.failures import to_public_error

        numbers = iter(range(1, len(parameters) + 1))
        text = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
        try:
            return [tuple(row) for row in await self._connection.fetch(text, *parameters)]
        except Exception as error:
            raise to_public_error(error, self._name) from None


@contextlib.asynccontextmanager
async def open_source(
    entry: Database, table: str | None = None
) -> AsyncIterator[tuple[Source, Layout]]:
    """Open a database for reading, and find its tables.

    Args:
        entry: its URL, and the settings of a connection. `search_path` names the schema.
        table: the table of sessions; None: `agno_sessions`, else the only one with its columns.

    Raises:
        errors.Unavailable: it cannot be opened.
        errors.UsageError: it has no tables of AgentOS.
    """
    place = display_url(entry.url)
    if is_sqlite_url(entry.url):
        source = await asyncio.to_thread(ForeignFile, sqlite_path(entry.url))
        try:
            rows = await source.read(
                "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c"
                " WHERE m.type = 'table'"
            )
            yield source, _find_layout(_group(rows), "", table, place)
        finally:
            await asyncio.to_thread(source.close)
        return
    from agentctl.store.postgres.connection import build_connect_arguments, connect
    from agentctl.store.postgres.failures import to_public_error

    settings = build_connect_arguments(entry)["server_settings"] | {
        "default_transaction_read_only": "on",
        "statement_timeout": str(int(STATEMENT_SECONDS * 1_000)),
    }
    try:
        connection = await connect(
            entry, server_settings=settings, command_timeout=STATEMENT_SECONDS
        )
    except Exception as error:
        raise to_public_error(error, place) from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            server = _ServerSource(connection, place)
            schema, tables = await _read_server_tables(server, entry.search_path, place)
            yield server, _find_layout(tables, schema, table, place)
    finally:
        await connection.close()


async def _read_server_tables(
    source: Source, schema: str, place: str
) -> tuple[str, dict[str, set[str]]]:
    rows = await source.read(
        "SELECT table_schema, table_name, column_name FROM information_schema.columns"
        " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
    )
    schemas: dict[str, list[Row]] = {}
    for name, table, column in rows:
        schemas.setdefault(str(name), []).append((table, column))
    if schema:
        return schema, _group(schemas.get(schema, []))
    grouped = {name: _group(columns) for name, columns in schemas.items()}
    fitting = [name for name, tables in grouped.items() if _tables_with(tables, _SESSION_COLUMNS)]
    if len(fitting) > 1 and DEFAULT_SCHEMA not in fitting:
        raise errors.UsageError(
            f"{place} has tables of AgentOS in several schemas: {', '.join(sorted(fitting))}",
            hint='name one with search_path in a [[databases]] entry with layout = "agentos"',
        )
    chosen = DEFAULT_SCHEMA if DEFAULT_SCHEMA in fitting else next(iter(fitting), "public")
    return chosen, grouped.get(chosen, {})


def _group(rows: Sequence[Row]) -> dict[str, set[str]]:
    tables: dict[str, set[str]] = {}
    for table, column in rows:
        tables.setdefault(str(table), set()).add(str(column))
    return tables


def _tables_with(tables: Mapping[str, set[str]], columns: frozenset[str]) -> list[str]:
    return sorted(name for name, found in tables.items() if columns <= found)


def _choose(tables: Mapping[str, set[str]], columns: frozenset[str], default: str) -> str | None:
    fitting = _tables_with(tables, columns)
    return default if default in fitting else next(iter(fitting), None)


def _find_layout(
    tables: Mapping[str, set[str]], schema: str, table: str | None, place: str
) -> Layout:
    if table is not None and table not in _tables_with(tables, _SESSION_COLUMNS):
        raise errors.NotFound(f"{place} has no table {table!r} with sessions of AgentOS")
    sessions = table or _choose(tables, _SESSION_COLUMNS, DEFAULT_SESSIONS)
    if sessions is None:
        ours = tables.keys() >= _OUR_TABLES
        raise errors.UsageError(
            f"{place} is " + ("a database of agentctl" if ours else "not a database of AgentOS"),
            cause=None if ours else "no table has the columns of its sessions",
            hint="read it with --config FILE, whose [[databases]] names it" if ours else None,
        )
    runs = _choose(tables, _RUN_COLUMNS, DEFAULT_RUNS)
    memories = _choose(tables, _MEMORY_COLUMNS, DEFAULT_MEMORIES)
    known = {sessions, runs, memories}
    return Layout(
        schema=schema,
        sessions=sessions,
        runs=runs,
        memories=memories,
        has_legacy_runs="runs" in tables[sessions],
        others=tuple(sorted(name for name in tables if name not in known)),
        place=place,
    )


class ForeignFile:
    """A SQLite file of another program, open for reading, on threads, one at a time.

    Neither the file nor a side file is written. SQLite writes side files even for a reader:
    `mode=ro` on a file in WAL mode creates `-shm` and an empty `-wal` unless both exist. So the way
    to open a file depends on its side files:

    - `-wal` and `-shm` exist: a program has the file open. `mode=ro` with `readonly_shm` reads what
      it has committed, and opens the index read-only too.
    - no `-wal`, or an empty one, in WAL mode: `immutable=1` reads the file alone. If the file
      changes meanwhile, the read is repeated.
    - a `-wal` without `-shm`, or a rollback journal to be applied: a program has crashed. The file
      and its log are copied to a private folder, and SQLite recovers the copy.
    - no WAL mode and no journal: `mode=ro`.

    Raises:
        errors.Unavailable: there is no such file, it cannot be read, or it is not a database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = path.resolve()
        self._copy: Path | None = None
        self._stamp: _Stamp | None = None
        self._lock = asyncio.Lock()
        try:
            with path.open("rb") as file:
                header = file.read(len(_MAGIC))
        except OSError as error:
            raise errors.Unavailable(
                "The database cannot be opened",
                cause=f"{path}: {os.strerror(error.errno or 0).lower()}",
            ) from None
        if header != _MAGIC:
            raise errors.Unavailable(
                "The file is not a database", cause=f"{path} is something else"
            )
        try:
            self._connection = self._open()
        except apsw.Error:
            raise _build_unreadable_error(path) from None

    async def read(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT; Unavailable if the file changes all the time."""
        async with self._lock:
            return await asyncio.to_thread(self._read, sql, parameters)

    def _read(self, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            for _ in range(ATTEMPTS):
                rows = self._connection.execute(sql, tuple(parameters)).fetchall()
                if self._stamp is None or self._stamp == self._read_stamp():
                    return rows
                # A program has opened the file, so that it is not immutable any more.
                self._connection.close(True)
                self._connection = self._open()
        except apsw.Error:
            raise _build_unreadable_error(self.path) from None
        raise errors.Unavailable(
            "The database changes while it is read", cause=str(self.path), hint="try again"
        )

    def close(self) -> None:
        """Close the file, and remove the private copy."""
        self._connection.close(True)
        if self._copy is not None:
            shutil.rmtree(self._copy.parent, ignore_errors=True)

    def _open(self) -> apsw.Connection:
        log = self._side_file("-wal")
        index = self._side_file("-shm")
        self._stamp = None
        with self._real.open("rb") as file:
            header = file.read(20)
        if len(header) == 20 and header[18] == header[19] == _WAL_VERSION:
            if log.exists() and index.exists():
                with contextlib.suppress(apsw.Error):
                    return _connect(self._real, "mode=ro&readonly_shm=1")
            elif not log.exists() or log.stat().st_size == 0:
                self._stamp = self._read_stamp()
                return _connect(self._real, "immutable=1")
            return self._open_copy(log)
        with contextlib.suppress(apsw.Error):
            return _connect(self._real, "mode=ro")
        return self._open_copy(self._side_file("-journal"))

    def _open_copy(self, log: Path) -> apsw.Connection:
        folder = Path(tempfile.mkdtemp(prefix="agentctl-"))
        self._copy = folder / "copy.db"
        # The log first: what a checkpoint moves to the file meanwhile is in both.
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(log, folder / f"copy.db{log.name[len(self._real.name) :]}")
        shutil.copyfile(self._real, self._copy)
        return _connect(self._copy, "mode=rw")

    def _side_file(self, ending: str) -> Path:
        return self._real.with_name(self._real.name + ending)

    def _read_stamp(self) -> _Stamp:
        found = self._real.stat()
        log = self._side_file("-wal")
        return found.st_mtime_ns, found.st_size, log.stat().st_size if log.exists() else 0


def _connect(path: Path, options: str) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_URI
    writable = options == "mode=rw"
    flags |= apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(f"file:{quote(str(path))}?{options}", flags=flags)
    connection.set_busy_timeout(WAIT_MILLISECONDS)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # reads the log, too
    return connection


def _build_unreadable_error(path: Path) -> errors.Unavailable:
    return errors.Unavailable(
        "The database cannot be read",
        cause=f"{path} is damaged, or another program holds its lock",
        hint="try again, or stop the program that uses it",
    )
