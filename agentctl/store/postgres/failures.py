"""The failures of PostgreSQL and of the way to it, as errors for callers."""

from __future__ import annotations

import logging
import ssl

import asyncpg

from agentctl import errors
from agentctl.records.logs import RateLimitedLog

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
"""Errors of a transaction that PostgreSQL has undone because of other transactions.

The transaction can be repeated.
"""

_DAMAGES = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)

_BUSY = ("The database is busy", "try again; see pool_size of [[databases]]")
_AWAY = ("The database does not answer", "check that the server runs, and the url of [[databases]]")
_INSECURE = "The connection to the database is not secure"

_UNKNOWN_AUTHORITY = "name the file with the authority of the server's certificate in tls_ca_file"

_CERTIFICATES = {
    9: "the certificate of the server is not valid yet: check the clocks",
    10: "the certificate of the server has expired: renew it",
    18: _UNKNOWN_AUTHORITY,
    19: _UNKNOWN_AUTHORITY,
    20: _UNKNOWN_AUTHORITY,
    62: "the certificate of the server is for another host than that of the url",
    64: "the certificate of the server is for another address than that of the url",
}
"""Hints for the `verify_code` of OpenSSL (x509_vfy.h)."""

_WORDS: dict[str, tuple[str, str]] = {
    "rejected SSL upgrade": (
        _INSECURE,
        "the server does not offer TLS: set ssl = on there, or another value of tls",
    ),
    "statement pooling mode": (
        "The connection pooler does not support transactions",
        "set pool_mode = transaction in pgbouncer.ini",
    ),
    "terminating connection due to transaction timeout": (
        "The database takes too long",
        "raise transaction_timeout of its user, or set it to 0",
    ),
    "too many notifications in the NOTIFY queue": (
        "The database has no space for notifications",
        "end the session that listens and is idle in transaction: see pg_stat_activity",
    ),
}
"""Words in the error of a lost connection or an exceeded limit, for causes without a class."""

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
    (
        asyncpg.ConfigurationLimitExceededError,
        ("A limit of the database user is too low", "raise its temp_file_limit"),
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
        asyncpg.InvalidPasswordError,
        ("The database refuses the password", "check the user of the url, and password_env"),
    ),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        (
            "The database refuses the user",
            "check the user of the url; pg_hba.conf of the server may require another value of tls,"
            " a client certificate or another address",
        ),
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
    (_DAMAGES, ("The database is damaged", "restore it from a backup")),
    (ssl.SSLError, (_INSECURE, "see tls and tls_ca_file of [[databases]]")),
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

    Returns:
        Unavailable, DatabaseDamaged if no retry helps, or InternalError for a fault of this
        package.
    """
    if isinstance(error, errors.AgentctlError):
        return error

    explanation = _explain(error)
    if explanation is None:
        log.error("database %s: %s: %s", name, type(error).__name__, error)
        return errors.InternalError()

    # The cause of an outage fails every request: the log must not repeat it for each.
    _limited_log.log("database %s: %s: %s", name, type(error).__name__, error)

    detail, hint = explanation
    if isinstance(error, _DAMAGES):
        return errors.DatabaseDamaged(detail, cause=f"database {name!r}", hint=hint)
    return errors.Unavailable(detail, cause=f"database {name!r}", hint=hint)


def _explain(error: Exception) -> tuple[str, str] | None:
    """Return the detail and the hint of a known failure; None if it is a fault of this package."""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _CERTIFICATES:
        return _INSECURE, _CERTIFICATES[error.verify_code]
    if isinstance(error, (*CONNECTION_LOST, asyncpg.ProgramLimitExceededError)):
        for words, explanation in _WORDS.items():
            if words in str(error):
                return explanation

    for kinds, explanation in _FAILURES:
        if isinstance(error, kinds):
            return explanation
    return None
