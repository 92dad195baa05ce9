"""The failures of PostgreSQL and of the way to it, as errors for callers."""

from __future__ import annotations

import logging
import ssl

import asyncpg

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.failures import build_moved, build_moving

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

MOVED_STATE, MOVING_STATE = "AG001", "AG002"
"""The SQLSTATE of the triggers of a copy that refuse writes (`store.copying`)."""

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
        (
            "The database is read-only",
            "the url names a standby, or default_transaction_read_only is on",
        ),
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
        (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError),
        (
            "The connection pooler does not keep prepared statements",
            "use PgBouncer 1.21 or later, with max_prepared_statements = 200 in pgbouncer.ini",
        ),
    ),
    (CONNECTION_LOST, _AWAY),
)

log = logging.getLogger("agentctl.store")
_limited_log = RateLimitedLog(log, level=logging.ERROR)


def to_public_error(error: Exception, name: str) -> errors.AgentctlError:
    """Return the error for a caller, and log the text of asyncpg or of the network.

    Args:
        error: the error that was raised.
        name: the id of the database.

    Returns:
        Unavailable or DatabaseMoved, or InternalError for a fault of this package.
    """
    if isinstance(error, errors.AgentctlError):
        return error
    state = getattr(error, "sqlstate", None)
    if state in (MOVED_STATE, MOVING_STATE):
        return build_moved() if state == MOVED_STATE else build_moving()
    # The cause of an outage fails every request: the log must not repeat it for each.
    for kinds, (detail, hint) in _FAILURES:
        if isinstance(error, kinds):
            _limited_log.log("database %s: %s: %s", name, type(error).__name__, error)
            return errors.Unavailable(detail, cause=f"database {name!r}", hint=hint)
    log.error("database %s: %s: %s", name, type(error).__name__, error)
    return errors.InternalError()
