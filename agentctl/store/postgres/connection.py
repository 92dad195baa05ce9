"""Connections to PostgreSQL: their setup, how a unit runs on one, and the errors.

A read of one statement needs no transaction (decision 126).
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.database import (
    MAXIMUM_COMPILED,
    Row,
    SecondStatement,
    Sql,
    Work,
    compile_for_postgres,
)
from agentctl.store.postgres.failures import CONNECTION_LOST, to_public_error

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_PROCESS = secrets.token_hex(8)
"""A part of the names of prepared statements that no other process has."""

STATEMENTS = 1_024
"""Prepared statements that a connection keeps: more than the repositories use at a time."""

ANSWER_SECONDS = 1.0
"""Additional seconds to wait for the response to a statement, for the network."""

# A crash resets the statistics of PostgreSQL, a clean stop does not.
LAST_CRASH = "pg_stat_get_bgwriter_stat_reset_time()::text"
"""An SQL expression: the time of the last recovery after a crash."""

_SESSION = """
SELECT name, setting, source, pg_backend_pid() AS pid, pg_is_in_recovery() AS is_standby
FROM pg_settings WHERE name = ANY($1)
"""

_NAME_SETTING = "application_name"
"""A setting that may differ: poolers replace it."""

_TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout")
"""Settings that each transaction can set for itself."""

_SCHEMA = "search_path"

_REFUSED_SETTING = "unsupported startup parameter"
"""The words of PgBouncer for a setting that it does not pass on."""

_refusing: set[str] = set()
"""URLs of poolers that refuse settings at the start of a connection."""

_ANY = "SELECT 1"

_WRITTEN = "SELECT pg_current_xact_id_if_assigned()::text"

_REPORT = " RETURNING pg_current_xact_id()::text"
"""The end of a statement that reports its transaction, which saves `_WRITTEN` before the COMMIT."""

_ONE_ROW = re.compile(r"INSERT INTO \w+ \([^()]*\) VALUES \(")


class PooledConnection(asyncpg.Connection):
    """A connection with the times that the pool needs: seconds on the clock of its event loop."""

    __slots__ = (
        "_clock",
        "_last_crash",
        "answer_seconds",
        "born",
        "deadline",
        "has_custom_plans",
        "is_shared",
        "is_to_standby",
        "local_settings",
        "timed_out",
        "transaction_id",
        "used",
    )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock = asyncio.get_running_loop().time
        self._last_crash: str | None = None

        self.born = self._clock()
        """The time at which it was opened."""

        self.used = self.born
        """The time at which it was returned to the pool last."""

        self.answer_seconds = float("inf")
        """The time that a statement has, for the pool; infinite outside it."""

        self.deadline = float("inf")
        """The time at which the pool terminates the connection.

        Unless the response to its statement has arrived.
        """

        self.timed_out = False
        """True if the pool has terminated it for that."""

        self.is_shared = False
        """True if a connection pooler gives its session to other clients between transactions."""

        self.is_to_standby = False
        """True if its server was a standby when it was opened."""

        self.local_settings = ""
        """Statements that follow each BEGIN, for settings that the pooler drops."""

        self.has_custom_plans = False
        """True if statements are planned for their values."""

        self.transaction_id: str | None = None
        """The id of the open transaction, if a statement has reported it."""

    def _get_unique_id(self, prefix: str) -> str:
        # asyncpg numbers its statements in each process alike. A pooler that does not keep prepared
        # statements would execute the statement of another process that has the same name.
        name: str = super()._get_unique_id(prefix)  # type: ignore[misc]  # not in its stubs
        return f"{name}{_PROCESS}"

    async def begin(self, statement: str) -> None:
        """Begin a transaction, with the settings that the connection has lost."""
        await self.execute(statement + self.local_settings)

    async def set_custom_plans(self, enabled: bool) -> None:
        """Plan the next statements for their values, or plan each statement once.

        A transaction on a shared connection sets it for itself instead: other clients have the
        session after it.
        """
        mode = "force_custom_plan" if enabled else "auto"
        self.begin_statement()
        await self.execute(f"SET plan_cache_mode = {mode}")
        self.has_custom_plans = enabled

    def begin_statement(self) -> None:
        """Set the deadline of a statement. A separate timer costs more than the statement."""
        self.deadline = self._clock() + self.answer_seconds

    async def last_crash(self) -> str:
        """Return the time of the last recovery of the server after a crash.

        The value is cached, because no connection survives a crash. A connection to a pooler does.
        """
        if self._last_crash is None or self.is_shared:
            self._last_crash = str(await self.fetchval(f"SELECT {LAST_CRASH}"))
        return self._last_crash


class InDoubt(Exception):
    """The connection was lost during a COMMIT: the outcome of the transaction is not known here.

    Args:
        transaction: its id.
        last_crash: the time of the last crash of the server when the transaction began.
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

        Returns:
            None if PostgreSQL does not know yet.

        Raises:
            OutcomeUnknown: the outcome cannot be found out.
        """
        if status == "aborted":
            return False
        if last_crash != self.last_crash:
            raise build_unknown_outcome()
        if status == "committed":
            return True
        return None


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
        arguments: they replace the arguments of `build_connect_arguments`.

    Raises:
        InvalidConfiguration: the password or the certificates are missing, or a connection pooler
            has dropped a setting that transactions cannot set for themselves.
        Exception: other errors, for `to_public_error`.
    """
    arguments = build_connect_arguments(entry) | arguments
    expected: dict[str, str] = arguments["server_settings"]
    connection = await _open(entry.url, arguments)
    try:
        await _verify_settings(connection, entry, expected)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _open(url: str, arguments: dict[str, Any]) -> PooledConnection:
    if url not in _refusing:
        try:
            return cast(PooledConnection, await asyncpg.connect(**arguments))
        except asyncpg.ProtocolViolationError as error:
            if _REFUSED_SETTING not in str(error):
                raise
            _refusing.add(url)

    settings: dict[str, str] = arguments["server_settings"]
    # PgBouncer passes these two on, in every configuration.
    passed_settings = {name: settings[name] for name in (_NAME_SETTING, "TimeZone")}
    arguments = {**arguments, "server_settings": passed_settings}
    return cast(PooledConnection, await asyncpg.connect(**arguments))


async def _verify_settings(
    connection: PooledConnection, entry: Entry, expected: dict[str, str]
) -> None:
    """Verify the settings of a connection: poolers in transaction mode may drop them.

    A lost time limit is set by each transaction. A lost `search_path` is an error: deployments in
    several schemas of a database would share the tables of one schema. A `search_path` that someone
    has set for a session of a pooler is an error as well: the next transaction may have another
    session.
    """
    rows = await connection.fetch(_SESSION, [*expected, _SCHEMA])
    # A pooler makes up the process id that it sends to its clients.
    connection.is_shared = rows[0]["pid"] != connection.get_server_pid()
    connection.is_to_standby = rows[0]["is_standby"]

    settings: dict[str, str] = {row["name"]: row["setting"] for row in rows}
    sources: dict[str, str] = {row["name"]: row["source"] for row in rows}
    if connection.is_shared and sources[_SCHEMA] == "session":
        raise errors.InvalidConfiguration(
            f"The sessions of database {entry.id!r} are changed by others: SET {_SCHEMA}",
            cause="another program uses the same user and database of the connection pooler",
            hint="give agentctl a separate user; see docs/postgresql.md",
        )

    kept_names = {name for name, value in expected.items() if settings.get(name) == value}
    connection.local_settings = "".join(
        f"; SET LOCAL {name} = {expected[name]}" for name in _TIMEOUTS if name not in kept_names
    )

    lost_settings = [
        name for name in expected if name not in {*kept_names, *_TIMEOUTS, _NAME_SETTING}
    ]
    if not lost_settings:
        return

    changes = "; ".join(f"ALTER ROLE … SET {name} = '{expected[name]}'" for name in lost_settings)
    raise errors.InvalidConfiguration(
        f"The connection to database {entry.id!r} has lost settings: {', '.join(lost_settings)}",
        cause="a connection pooler has dropped what a new connection asks for",
        hint=f"set them for the user of the database: {changes}; see docs/postgresql.md",
    )


async def verify_statements(connection: PooledConnection, entry: Entry) -> None:
    """Verify that prepared statements survive a change of the session by a connection pooler.

    PgBouncer before 1.21 fails here at once, and not only under load.
    """
    if not connection.is_shared:
        return

    other_connection = await connect(entry)
    try:
        await connection.fetchval(_ANY)
        # The other connection gets the session that was used last, so this one gets another.
        async with other_connection.transaction():
            await other_connection.execute(_ANY)
            await connection.fetchval(_ANY)
    finally:
        other_connection.terminate()


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
    """Build the arguments of `asyncpg.connect`."""
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
        "ssl": _build_tls(entry),
        "connection_class": PooledConnection,
    }

    if entry.password_env:
        arguments["password"] = os.environ.get(entry.password_env)
        if arguments["password"] is None:
            raise errors.InvalidConfiguration(
                f"The password of database {entry.id!r} is missing",
                cause=f"the environment variable {entry.password_env} is not set",
            )
    return arguments


def _build_tls(entry: Entry) -> ssl.SSLContext | str:
    """Build the argument `ssl` of `asyncpg.connect`.

    The modes without verification are modes of asyncpg, which has no argument for `tls_ca_file`.
    """
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

    # The client certificate, as asyncpg loads it without verification.
    certificate = os.environ.get("PGSSLCERT")
    key = os.environ.get("PGSSLKEY")
    if not certificate:
        return context

    try:
        # Without a password OpenSSL would prompt for the password of an encrypted key.
        context.load_cert_chain(certificate, key or None, password="")
        return context
    except OSError:
        raise errors.InvalidConfiguration(
            f"The client certificate for database {entry.id!r} cannot be read",
            cause=f"PGSSLCERT is {certificate}, PGSSLKEY is {key or 'not set'}",
        ) from None


@lru_cache(MAXIMUM_COMPILED)
def _compile_write(sql: Sql) -> tuple[str, tuple[str, ...]]:
    """Compile a statement; an INSERT of a row returns the id of its transaction."""
    text, names = compile_for_postgres(sql)
    if _ONE_ROW.match(text) and "RETURNING" not in text:
        text += _REPORT
    return text, names


async def run_unit(
    connection: PooledConnection,
    work: Work[T],
    *,
    alone: bool = False,
    compile: Callable[[Sql], tuple[str, tuple[str, ...]]] = compile_for_postgres,
) -> T:
    """Run a unit on a connection.

    Args:
        alone: set outside a transaction.
        compile: returns the text of a statement, and the names of its parameters.
    """
    steps = iter(work)
    send: Callable[[Any], Any] = steps.send
    rows: list[Row] | None = None

    try:
        while True:
            sql, parameters = send(rows)
            if alone and rows is not None:
                raise SecondStatement("a single unit has a second statement")

            text, names = compile(sql)
            connection.begin_statement()
            rows = cast(
                "list[Row]", await connection.fetch(text, *[parameters[name] for name in names])
            )

            if text.endswith(_REPORT):
                for row in rows:
                    connection.transaction_id = row[0]
                rows = []
    except StopIteration as end:
        return cast(T, end.value)
    except (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError):
        raise _build_unstorable_text() from None
    except asyncpg.DataError as error:
        if isinstance(error.__cause__, UnicodeEncodeError):
            raise _build_unstorable_text() from None
        raise
    finally:
        steps.close()


async def run_write(connection: PooledConnection, work: Work[T]) -> T:
    """Run a unit in one transaction; a repeatable one as a statement by itself.

    Raises:
        InDoubt: the connection was lost during the COMMIT, and the unit has written something.
    """
    if work.repeatable:
        return await run_unit(connection, work, alone=True)

    last_crash = await connection.last_crash()
    connection.transaction_id = None
    await connection.begin("BEGIN ISOLATION LEVEL READ COMMITTED")

    result = await run_unit(connection, work, compile=_compile_write)
    transaction = connection.transaction_id
    if transaction is None:
        connection.begin_statement()
        transaction = await connection.fetchval(_WRITTEN)

    connection.begin_statement()
    try:
        await connection.execute("COMMIT")
    except CONNECTION_LOST:
        if transaction is not None:
            raise InDoubt(transaction, last_crash, result) from None
    return result


def _build_unstorable_text() -> errors.ValidationFailed:
    return errors.ValidationFailed("Text must not contain NUL or lone surrogates")
