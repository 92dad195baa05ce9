"""Facts about a PostgreSQL server for `agentctl doctor`. Nothing is changed."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import uuid4

import asyncpg

from agentctl.config.settings import Database as Entry
from agentctl.records.times import now
from agentctl.store.postgres.connection import open_connection
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.sqlite.schema import expected_columns

NOTIFICATION_SECONDS = 2.0
"""Time in which a notification must arrive."""

_FACTS = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit') <> 'off',
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int,
    (SELECT count(*) FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND application_name <> 'agentctl'),
    (SELECT min(bound) FROM (
        SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user
        UNION ALL SELECT datconnlimit FROM pg_database WHERE datname = current_database()
     ) AS bounds (bound) WHERE bound >= 0),
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
    current_setting('server_encoding')
"""

_MISSING_PRIVILEGES = """
SELECT name || ': ' || string_agg(kind, ', ') FROM
    unnest($1::text[]) AS name, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS kind
WHERE NOT has_table_privilege(name, kind) GROUP BY name ORDER BY name
"""


class ServerFacts(NamedTuple):
    """Facts that a server reports."""

    version: str

    number: int
    """The version as a number, such as 130004 for 13.4."""

    clock_ahead: int
    """Microseconds by which its clock is ahead, without the duration of the query."""

    standby: bool

    read_only: bool
    """True if transactions cannot write, for any reason."""

    fsync: bool
    """False if a crash of its machine can damage the data."""

    full_pages: bool
    """False if a crash of its machine can damage the data."""

    synchronous: bool
    """False if a crash of the server can lose an acknowledged change."""

    connection_limit: int
    """Maximum number of connections of all users together."""

    connections_in_use: int
    """Connections of other programs."""

    user_connection_limit: int | None
    """Maximum number of connections of the user or of the database; None without a limit."""

    encrypted: bool
    encoding: str

    missing_privileges: list[str]
    """Privileges that the user lacks, by table."""


async def read_server_facts(entry: Entry) -> ServerFacts:
    """Read the facts of a server that has the tables of agentctl.

    Raises:
        Unavailable: the server does not answer.
        InvalidConfiguration: the password or the certificates are missing.
    """
    tables = sorted({table for table, _ in expected_columns(SCHEMA_VERSION)} - {"schema_version"})

    async with open_connection(entry) as connection:
        before = now()
        row = await connection.fetchrow(_FACTS)
        answered = now()
        lacking = await connection.fetch(_MISSING_PRIVILEGES, tables)

    assert row is not None
    version, number, clock, *rest = row
    # A time between the request and the response is not ahead.
    ahead = clock - min(max(clock, before), answered)
    missing_privileges = [name for (name,) in lacking]
    return ServerFacts._make([version.split()[0], number, ahead, *rest, missing_privileges])


async def receives_notifications(entry: Entry) -> bool:
    """Return True if a connection receives its own notification."""
    channel = f"agentctl_{uuid4().hex}"
    received = asyncio.Event()
    async with open_connection(entry) as connection:
        # A pooler may use the same session again, which receives its own notification.
        if connection.is_shared:
            return False

        try:
            await connection.add_listener(channel, lambda *_: received.set())
            await connection.execute("SELECT pg_notify($1, '')", channel)
        except asyncpg.PostgresError:
            # A standby refuses to listen.
            return False

        try:
            async with asyncio.timeout(NOTIFICATION_SECONDS):
                await received.wait()
        except TimeoutError:
            return False
    return True
