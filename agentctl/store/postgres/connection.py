"""One connection to PostgreSQL: how it is made, how a unit runs on it, what its errors mean."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.database import Longer, Row, Steps, Work, compile_for_postgres

__all__ = [
    "CONFLICTS",
    "CONNECTION_LOST",
    "LAST_CRASH",
    "Connection",
    "InDoubt",
    "Longer",
    "PooledConnection",
    "build_connect_arguments",
    "build_unknown_outcome",
    "connect",
    "run_steps",
    "run_transaction",
    "to_public_error",
]

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class PooledConnection(asyncpg.Connection):
    """A connection that knows what does not change while it is there.

    Attributes:
        born: when it was made, on the clock of its event loop.
        used: when it was given back last.
    """

    __slots__ = ("_recovered", "born", "used")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.born = self.used = asyncio.get_running_loop().time()
        self._recovered: str | None = None

    async def recovered(self) -> str:
        """When its PostgreSQL last began anew after a crash: none outlives another one."""
        if self._recovered is None:
            self._recovered = str(await self.fetchval(f"SELECT {LAST_CRASH}"))
        return self._recovered


STATEMENTS = 1_024
"""Prepared statements that a connection keeps: more than the repositories have in use."""

ANSWER_SECONDS = 1.0
"""How much longer than a statement may take we wait for its answer: the network, or nobody."""

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
"""What is raised when the connection, or the server behind it, has gone away."""

CONFLICTS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
)
"""What PostgreSQL undoes for the sake of others; the same again may succeed."""

# A crash makes PostgreSQL begin its statistics anew, a clean stop does not.
LAST_CRASH = "pg_stat_get_bgwriter_stat_reset_time()::text"
"""When PostgreSQL last began anew after a crash, as an expression."""

_WRITTEN = "SELECT pg_current_xact_id_if_assigned()::text"

_BUSY = ("The database is busy", "try again; see pool_size of [[databases]]")
_AWAY = ("The database does not answer", "check that the server runs and that the url is right")

_FAILURES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], tuple[str, str]], ...] = (
    (CONFLICTS, ("The database is busy", "too much is changed at the same place; try again")),
    (
        asyncpg.QueryCanceledError,
        ("The database takes too long", "see statement_seconds of [[databases]]"),
    ),
    (
        asyncpg.TooManyConnectionsError,
        ("The database has no connection left", "lower pool_size, or raise its max_connections"),
    ),
    (asyncpg.DiskFullError, ("The database's disk is full", "free some space")),
    (
        asyncpg.PostgresSystemError,
        ("The database cannot use its files", "its server's log says which, and why"),
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
        ("There is no such database", "make it with createdb, or change the url"),
    ),
    (
        asyncpg.InsufficientPrivilegeError,
        ("The database's user may not do that", "GRANT it what docs/postgresql.md names"),
    ),
    (
        (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError),
        ("The database does not have the tables", "run `agentctl db migrate`"),
    ),
    (asyncpg.DataCorruptedError, ("The database is damaged", "restore it from a backup")),
    (asyncpg.IndexCorruptedError, ("The database is damaged", "restore it from a backup")),
    (
        ssl.SSLError,
        ("The connection to the database is not safe", "see tls and tls_ca_file of [[databases]]"),
    ),
    (CONNECTION_LOST, _AWAY),
)

log = logging.getLogger("agentctl.store")
_complaints = RateLimitedLog(log, level=logging.ERROR)


class InDoubt(Exception):
    """The connection was lost at the commit: PostgreSQL knows what became of it, we do not.

    Attributes:
        transaction: its id (`xid8`), to ask for.
        recovered: when PostgreSQL last began anew after a crash.
        result: of the unit, if it was committed.
    """

    def __init__(self, transaction: str, recovered: str, result: Any) -> None:
        super().__init__(transaction)
        self.transaction = transaction
        self.recovered = recovered
        self.result = result

    def outcome(self, status: str | None, recovered: str) -> bool | None:
        """Whether it was committed, as PostgreSQL tells now; None: it does not know yet.

        After a crash the id may be another's: it is given again when nothing of its transaction
        had reached the disk. That of one that was committed never is, so that *aborted* holds;
        *committed* may be the other's.

        Args:
            status: of the transaction, by its id.
            recovered: when PostgreSQL last began anew after a crash.

        Raises:
            OutcomeUnknown: nobody will ever know.
        """
        if status == "aborted":
            return False
        if recovered != self.recovered:
            raise build_unknown_outcome()
        return True if status == "committed" else None


def build_unknown_outcome() -> errors.OutcomeUnknown:
    """For a commit that nobody can tell the outcome of."""
    return errors.OutcomeUnknown(
        "It is not known whether the change was made",
        cause="the database went away while it was written to",
        hint="look before you repeat it; a run is not doubled with the same Idempotency-Key",
    )


async def connect(entry: Entry) -> PooledConnection:
    """A connection as the configuration describes it. Raises what `public_error` takes."""
    return cast(PooledConnection, await asyncpg.connect(**build_connect_arguments(entry)))


def build_connect_arguments(entry: Entry) -> dict[str, Any]:
    """What asyncpg is given for a connection.

    Raises:
        InvalidConfiguration: the password or the certificates are not where the entry says.
    """
    settings = {
        "application_name": "agentctl",
        "statement_timeout": str(int(entry.statement_seconds * 1_000)),
        "idle_in_transaction_session_timeout": str(int(entry.statement_seconds * 2_000)),
        "timezone": "UTC",
    }
    if entry.search_path:
        settings["search_path"] = entry.search_path
    given: dict[str, Any] = {
        "dsn": entry.url,
        "timeout": entry.wait_seconds,
        "command_timeout": entry.statement_seconds + ANSWER_SECONDS,
        "statement_cache_size": STATEMENTS,
        "max_cached_statement_lifetime": 0,
        "server_settings": settings,
        "ssl": _tls(entry),
        "connection_class": PooledConnection,
    }
    if entry.password_env:
        given["password"] = _password(entry)
    return given


def _password(entry: Entry) -> str:
    password = os.environ.get(entry.password_env)
    if password is None:
        raise errors.InvalidConfiguration(
            f"The password of database {entry.id!r} is missing",
            cause=f"the environment variable {entry.password_env} is not set",
        )
    return password


def _tls(entry: Entry) -> ssl.SSLContext | str:
    """libpq's words for what does not look at certificates; else a context that does."""
    if not entry.tls.startswith("verify"):
        return entry.tls
    try:
        context = ssl.create_default_context(cafile=entry.tls_ca_file)
    except OSError:
        raise errors.InvalidConfiguration(
            f"The certificates of database {entry.id!r} cannot be read",
            cause=f"tls_ca_file names {entry.tls_ca_file}",
        ) from None
    context.check_hostname = entry.tls == "verify-full"
    return context


def to_public_error(error: Exception, name: str) -> errors.AgentctlError:
    """What a caller is told of an error of asyncpg or of the network: Unavailable, or
    InternalFailure for a fault of ours. Its own text goes to the log.

    Args:
        error: what was raised.
        name: id of the database.
    """
    if isinstance(error, errors.AgentctlError):
        return error
    # What keeps a database away keeps it away from everybody, again and again.
    for kinds, (detail, hint) in _FAILURES:
        if isinstance(error, kinds):
            _complaints.make("database %s: %s: %s", name, type(error).__name__, error)
            return errors.Unavailable(detail, cause=f"database {name!r}", hint=hint)
    log.error("database %s: %s: %s", name, type(error).__name__, error)
    return errors.InternalError()


async def run_steps(connection: Connection, steps: Steps[T], *, most: int | None = None) -> T:
    """Run a unit on a connection, in the transaction that is open, if one is.

    Args:
        connection: nobody else's meanwhile.
        steps: one run of the unit; it is closed at the end.
        most: how many statements it may have.

    Raises:
        ValidationFailed: a value is text that no database takes (contract.md 7).
        Longer: it has a statement more than `most`; that one was not run.
        Whatever a statement or the unit itself raises.
    """
    send: Callable[[Any], Any] = steps.send
    rows: list[Row] | None = None
    try:
        while True:
            sql, parameters = send(rows)
            if most is not None:
                if not most:
                    raise Longer
                most -= 1
            text, names = compile_for_postgres(sql)
            rows = cast(
                "list[Row]", await connection.fetch(text, *[parameters[name] for name in names])
            )
    except StopIteration as end:
        return cast(T, end.value)
    except (
        asyncpg.CharacterNotInRepertoireError,
        asyncpg.UntranslatableCharacterError,
    ):
        raise _unstorable_text() from None
    except asyncpg.DataError as error:
        if isinstance(error.__cause__, UnicodeEncodeError):
            raise _unstorable_text() from None
        raise
    finally:
        steps.close()


async def run_transaction(connection: Connection, work: Work[T]) -> T:
    """Run a unit in one transaction. What is raised on the way has changed nothing, but for:

    Raises:
        InDoubt: the connection was lost at the commit.
    """
    recovered = await cast(PooledConnection, connection).recovered()
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    result = await run_steps(connection, iter(work))
    written = await connection.fetchval(_WRITTEN)
    try:
        await connection.execute("COMMIT")
    except CONNECTION_LOST:
        if written is not None:
            raise InDoubt(written, recovered, result) from None
    return result


def _unstorable_text() -> errors.ValidationFailed:
    return errors.ValidationFailed("Text must not contain NUL or lone surrogates")
