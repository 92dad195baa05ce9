"""Connections to PostgreSQL: their setup, how a unit runs on one, and the errors."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.database import Row, Work, compile_for_postgres

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class PooledConnection(asyncpg.Connection):
    """A connection with the times that the pool needs, on the clock of its event loop.

    Attributes:
        born: the time at which it was opened, in seconds.
        used: the time at which it was returned to the pool last, in seconds.
        answer_seconds: the time that a statement has, for the pool; infinite outside it.
        deadline: the time at which the pool terminates the connection, unless the response to its
            statement has arrived, in seconds.
        timed_out: True if that has happened.
    """

    __slots__ = ("_clock", "_last_crash", "answer_seconds", "born", "deadline", "timed_out", "used")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock = asyncio.get_running_loop().time
        self.born = self.used = self._clock()
        self.answer_seconds = self.deadline = float("inf")
        self.timed_out = False
        self._last_crash: str | None = None

    def begin_statement(self) -> None:
        """Set the deadline of a statement. A timer of its own costs more than the statement."""
        self.deadline = self._clock() + self.answer_seconds

    async def last_crash(self) -> str:
        """Return the time of the last recovery of the server after a crash.

        The value is cached: no connection survives a crash.
        """
        if self._last_crash is None:
            self._last_crash = str(await self.fetchval(f"SELECT {LAST_CRASH}"))
        return self._last_crash


STATEMENTS = 1_024
"""Prepared statements that a connection keeps: more than the repositories use at a time."""

ANSWER_SECONDS = 1.0
"""Additional seconds to wait for the response to a statement, for the network."""

CONNECTION_LOST = (
    OSError,
    EOFError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""The errors after which the connection, or its server, is lost."""

CONFLICTS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
)
"""The errors of a transaction that PostgreSQL has undone because of others: it can be repeated."""

# A crash resets the statistics of PostgreSQL, a clean stop does not.
LAST_CRASH = "pg_stat_get_bgwriter_stat_reset_time()::text"
"""An SQL expression: the time of the last recovery after a crash."""

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)"

_NAME_SETTING = "application_name"
"""A setting that may differ: poolers replace it."""

_WRITTEN = "SELECT pg_current_xact_id_if_assigned()::text"

_BUSY = ("The database is busy", "try again; see pool_size of [[databases]]")
_AWAY = ("The database does not answer", "check that the server runs and that the url is right")

_FAILURES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], tuple[str, str]], ...] = (
    (CONFLICTS, ("The database is busy", "many requests change the same rows; try again")),
    (
        asyncpg.QueryCanceledError,
        ("The database takes too long", "see statement_seconds of [[databases]]"),
    ),
    (
        asyncpg.TooManyConnectionsError,
        ("The database has no connection left", "lower pool_size, or raise its max_connections"),
    ),
    (asyncpg.DiskFullError, ("The database disk is full", "free some space")),
    (
        asyncpg.PostgresSystemError,
        ("The database cannot use its files", "see the log of the database server"),
    ),
    (asyncpg.InsufficientResourcesError, _BUSY),
    (asyncpg.LockNotAvailableError, _BUSY),
    (
        asyncpg.ReadOnlySQLTransactionError,
        ("The database is read-only", "the url names a standby; name the primary"),
    ),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        ("The database refuses the user", "check the user of the url, and password_env"),
    ),
    (
        asyncpg.InvalidCatalogNameError,
        ("The database does not exist", "create it with createdb, or change the url"),
    ),
    (
        asyncpg.InsufficientPrivilegeError,
        ("The database user lacks a privilege", "GRANT the privileges in docs/postgresql.md"),
    ),
    (
        (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError),
        ("The database does not have the tables", "run `agentctl db migrate`"),
    ),
    (asyncpg.DataCorruptedError, ("The database is damaged", "restore it from a backup")),
    (asyncpg.IndexCorruptedError, ("The database is damaged", "restore it from a backup")),
    (
        ssl.SSLError,
        (
            "The connection to the database is not secure",
            "see tls and tls_ca_file of [[databases]]",
        ),
    ),
    (
        asyncpg.ProtocolViolationError,
        (
            "The connection pooler refuses the settings of the connection",
            "see docs/postgresql.md, section Connection poolers",
        ),
    ),
    (
        (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError),
        (
            "The connection pooler does not keep prepared statements",
            "use PgBouncer 1.21 or later with max_prepared_statements",
        ),
    ),
    (CONNECTION_LOST, _AWAY),
)

log = logging.getLogger("agentctl.store")
_limited_log = RateLimitedLog(log, level=logging.ERROR)


class InDoubt(Exception):
    """The connection was lost during a COMMIT: the outcome of the transaction is not known here.

    Attributes:
        transaction: the id of the transaction (`xid8`).
        last_crash: the time of the last recovery of the server after a crash.
        result: the result of the unit, if the transaction was committed.
    """

    def __init__(self, transaction: str, last_crash: str, result: Any) -> None:
        super().__init__(transaction)
        self.transaction = transaction
        self.last_crash = last_crash
        self.result = result

    def outcome(self, status: str | None, last_crash: str) -> bool | None:
        """Return True if the transaction was committed, from what PostgreSQL reports now.

        After a crash PostgreSQL may use the id again for another transaction, if nothing of ours
        had reached the disk. It never does so for a committed one. So `aborted` is certain, and
        `committed` may be the status of the other transaction.

        Args:
            status: the status of the transaction id.
            last_crash: the time of the last recovery of the server after a crash.

        Returns:
            None if PostgreSQL does not know yet.

        Raises:
            OutcomeUnknown: the outcome cannot be found out.
        """
        if status == "aborted":
            return False
        if last_crash != self.last_crash:
            raise build_unknown_outcome()
        return True if status == "committed" else None


class StatementInDoubt(Exception):
    """The connection was lost during a shortcut: it is not known here if it was executed."""


def build_unknown_outcome() -> errors.OutcomeUnknown:
    """Build the error for a commit with an unknown outcome."""
    return errors.OutcomeUnknown(
        "It is not known whether the change was made",
        cause="the connection to the database was lost during the commit",
        hint="check before you repeat it; the same Idempotency-Key never starts a second run",
    )


def count_answer_seconds(entry: Entry) -> float:
    """Return the time to wait for the response to a statement, in seconds."""
    return entry.statement_seconds + ANSWER_SECONDS


async def connect(entry: Entry, **arguments: Any) -> PooledConnection:
    """Open a connection from the configuration, and verify its settings.

    Args:
        arguments: these replace those of `build_connect_arguments`.

    Raises:
        InvalidConfiguration: the password or the certificates are missing, or a connection pooler
            has dropped a setting.
        Exception: other errors, for `to_public_error`.
    """
    arguments = build_connect_arguments(entry) | arguments
    connection = cast(PooledConnection, await asyncpg.connect(**arguments))
    try:
        await _verify_settings(connection, entry, arguments["server_settings"])
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _verify_settings(
    connection: PooledConnection, entry: Entry, expected: dict[str, str]
) -> None:
    """Refuse a connection that lacks settings: poolers in transaction mode may drop them.

    Without `search_path`, deployments in several schemas of a database would share the tables of
    one schema.

    Raises:
        InvalidConfiguration: a setting is lost.
    """
    rows = await connection.fetch(_SETTINGS, list(expected))
    found: dict[str, str] = {row["name"]: row["setting"] for row in rows}
    lost = [
        name
        for name, value in expected.items()
        if name != _NAME_SETTING and found.get(name) != value
    ]
    if not lost:
        return
    changes = "; ".join(f"ALTER ROLE … SET {name} = '{expected[name]}'" for name in lost)
    raise errors.InvalidConfiguration(
        f"The connection to database {entry.id!r} has lost settings: {', '.join(lost)}",
        cause="a connection pooler has dropped what a new connection asks for",
        hint=f"set them for the user of the database: {changes}; see docs/postgresql.md",
    )


@asynccontextmanager
async def open_connection(entry: Entry) -> AsyncIterator[PooledConnection]:
    """Open a connection and close it at the end. Raises the errors of `to_public_error`."""
    try:
        connection = await connect(entry)
        try:
            yield connection
        finally:
            await connection.close()
    except Exception as error:
        raise to_public_error(error, entry.id) from None


def build_connect_arguments(entry: Entry) -> dict[str, Any]:
    """Build the arguments of `asyncpg.connect`.

    Raises:
        InvalidConfiguration: the password or the certificates are missing.
    """
    settings = {
        _NAME_SETTING: "agentctl",
        "statement_timeout": str(int(entry.statement_seconds * 1_000)),
        "idle_in_transaction_session_timeout": str(int(entry.statement_seconds * 2_000)),
        "TimeZone": "UTC",
    }
    if entry.search_path:
        settings["search_path"] = entry.search_path
    arguments: dict[str, Any] = {
        "dsn": entry.url,
        "timeout": entry.wait_seconds,
        "command_timeout": count_answer_seconds(entry),
        "statement_cache_size": STATEMENTS,
        "max_cached_statement_lifetime": 0,
        "server_settings": settings,
        "ssl": _tls(entry),
        "connection_class": PooledConnection,
    }
    if entry.password_env:
        arguments["password"] = _password(entry)
    return arguments


def _password(entry: Entry) -> str:
    password = os.environ.get(entry.password_env)
    if password is None:
        raise errors.InvalidConfiguration(
            f"The password of database {entry.id!r} is missing",
            cause=f"the environment variable {entry.password_env} is not set",
        )
    return password


def _tls(entry: Entry) -> ssl.SSLContext | str:
    if not entry.tls.startswith("verify"):
        return entry.tls
    try:
        context = ssl.create_default_context(cafile=entry.tls_ca_file)
    except OSError:
        raise errors.InvalidConfiguration(
            f"The certificates of database {entry.id!r} cannot be read",
            cause=f"tls_ca_file is {entry.tls_ca_file}",
        ) from None
    context.check_hostname = entry.tls == "verify-full"
    return context


def to_public_error(error: Exception, name: str) -> errors.AgentctlError:
    """Return the error for a caller, and log the text of asyncpg or of the network.

    Args:
        error: the error that was raised.
        name: the id of the database.

    Returns:
        Unavailable, or InternalError for a fault of this package.
    """
    if isinstance(error, errors.AgentctlError):
        return error
    # The cause of an outage fails every request: the log must not repeat it for each.
    for kinds, (detail, hint) in _FAILURES:
        if isinstance(error, kinds):
            _limited_log.log("database %s: %s: %s", name, type(error).__name__, error)
            return errors.Unavailable(detail, cause=f"database {name!r}", hint=hint)
    log.error("database %s: %s: %s", name, type(error).__name__, error)
    return errors.InternalError()


async def run_unit(connection: PooledConnection, work: Work[T]) -> T:
    """Run a unit on a connection, in the open transaction if there is one.

    Args:
        connection: a connection that no other task uses.
        work: the unit.

    Raises:
        ValidationFailed: a value is text that no database stores (docs/contract.md "Requests").
        RuntimeError: a single unit has a second statement.
        Exception: the exceptions of the statements and of the unit.
    """
    steps = iter(work)
    send: Callable[[Any], Any] = steps.send
    rows: list[Row] | None = None
    try:
        while True:
            sql, parameters = send(rows)
            if work.single and rows is not None:
                raise RuntimeError("a single unit has a second statement")
            text, names = compile_for_postgres(sql)
            connection.begin_statement()
            rows = cast(
                "list[Row]", await connection.fetch(text, *[parameters[name] for name in names])
            )
    except StopIteration as end:
        return cast(T, end.value)
    except (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError):
        raise _unstorable_text() from None
    except asyncpg.DataError as error:
        if isinstance(error.__cause__, UnicodeEncodeError):
            raise _unstorable_text() from None
        raise
    finally:
        steps.close()


async def run_write(connection: PooledConnection, work: Work[T]) -> T:
    """Run a unit in one transaction; a repeatable one as a statement by itself.

    Raises:
        InDoubt: the connection was lost during the COMMIT, and the unit has written something.
        Exception: any other error. Nothing was changed.
    """
    if work.repeatable:
        return await run_unit(connection, work)
    last_crash = await connection.last_crash()
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    result = await run_unit(connection, work)
    connection.begin_statement()
    written = await connection.fetchval(_WRITTEN)
    connection.begin_statement()
    try:
        await connection.execute("COMMIT")
    except CONNECTION_LOST:
        if written is not None:
            raise InDoubt(written, last_crash, result) from None
    return result


async def run_shortcut(connection: PooledConnection, statement: Work[T]) -> T | None:
    """Run the statement of a shortcut as a transaction by itself.

    Returns:
        None also if the statement failed: the unit that runs instead reports why.

    Raises:
        StatementInDoubt: the connection was lost after the statement may have been sent.
        Exception: the errors that any statement would have, such as those of `CONFLICTS`.
    """
    try:
        return await run_unit(connection, statement)
    except (*CONFLICTS, asyncpg.QueryCanceledError):
        raise
    except CONNECTION_LOST:
        connection.terminate()
        raise StatementInDoubt from None
    except asyncpg.PostgresError:
        return None


def _unstorable_text() -> errors.ValidationFailed:
    return errors.ValidationFailed("Text must not contain NUL or lone surrogates")
