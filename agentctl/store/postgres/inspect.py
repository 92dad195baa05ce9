"""Looking at a PostgreSQL server for `agentctl doctor`; nothing is changed."""

from __future__ import annotations

from typing import NamedTuple

from agentctl.config.settings import Database as Entry
from agentctl.records.times import now
from agentctl.store.postgres.connection import connect, to_public_error
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.sqlite.schema import expected_columns

__all__ = ["ServerFacts", "read_server_facts"]

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
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)
"""

_MISSING_PRIVILEGES = """
SELECT name || ': ' || string_agg(kind, ', ') FROM
    unnest($1::text[]) AS name, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS kind
WHERE NOT has_table_privilege(name, kind) GROUP BY name ORDER BY name
"""


class ServerFacts(NamedTuple):
    """What a server says of itself.

    Attributes:
        version: as people write it; `number`: as PostgreSQL counts, 130004 for 13.4.
        ahead: its clock before ours, in microseconds; what the question took is in neither.
        standby: it repeats what another one does.
        read_only: transactions cannot write, whatever keeps them from it.
        fsync, full_pages, synchronous: whether what was acknowledged outlives a crash.
        room: connections that all of its users can have together, `taken` of them by others.
        bound: connections of our user, or of the database, at most; None: no bound of their own.
        encrypted: the connection that asked.
        missing: rights that our user lacks, by table.
    """

    version: str
    number: int
    clock_ahead: int
    standby: bool
    read_only: bool
    fsync: bool
    full_pages: bool
    synchronous: bool
    connection_limit: int
    connections_in_use: int
    user_connection_limit: int | None
    encrypted: bool
    missing_privileges: list[str]


async def read_server_facts(entry: Entry) -> ServerFacts:
    """Ask a server that has our tables, all of them.

    Raises:
        Unavailable: it does not answer.
        InvalidConfiguration: its password or its certificates are not there.
    """
    tables = sorted({table for table, _ in expected_columns(SCHEMA_VERSION)} - {"schema_version"})
    try:
        connection = await connect(entry)
        try:
            asked = now()
            row = await connection.fetchrow(_FACTS)
            answered = now()
            lacking = await connection.fetch(_MISSING_PRIVILEGES, tables)
        finally:
            await connection.close()
    except Exception as error:
        raise to_public_error(error, entry.id) from None
    assert row is not None
    version, number, clock, *rest = row
    ahead = clock - min(max(clock, asked), answered)
    missing = [each[0] for each in lacking]
    return ServerFacts._make([version.split()[0], number, ahead, *rest, missing])
