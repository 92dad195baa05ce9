"""Connections that PostgreSQL or TLS refuses: each message names its cause."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from agentctl import errors
from agentctl.config.settings import Database, TlsMode
from agentctl.store.database import Sql
from agentctl.store.postgres.database import PostgresDatabase
from tests.kit.certificates import create_certificate
from tests.kit.conditions import wait_until
from tests.kit.connections import serve_connections
from tests.kit.postgres_server import PostgresServer, execute, run_postgres_server

PASSWORD = "p@:/?#%[]'\" ü😀"

USERS = "local all locked scram-sha-256\nlocal all unknown reject\nlocal all all trust\n"

LARGE_SORT = Sql(
    "SELECT count(*) FROM (SELECT n FROM generate_series(1, 100000) n ORDER BY md5(n::text)) AS a"
).value()

SLOW = Sql("SELECT set_config('transaction_timeout', '500', true), pg_sleep(4)")

FILL = Sql("SELECT pg_notify('anything', repeat('x', 7000) || cast(:number as bigint))")


@pytest.fixture(scope="module")
def strict() -> Iterator[PostgresServer]:
    """A server with users that it limits."""
    with run_postgres_server() as server:
        (server.log.parent / "pg_hba.conf").write_text(USERS)
        quoted = PASSWORD.replace("'", "''")
        execute(
            server,
            f"CREATE ROLE locked LOGIN SUPERUSER PASSWORD '{quoted}'",
            "CREATE ROLE unknown LOGIN",
            "CREATE ROLE hurried LOGIN SUPERUSER",
        )
        asyncio.run(reload(server))
        yield server


async def reload(server: PostgresServer) -> None:
    """Let a server read its files again, and wait until new connections follow them."""

    async def read_load_time() -> datetime:
        connection = await asyncpg.connect(server.url)
        try:
            loaded: datetime = await connection.fetchval("SELECT pg_conf_load_time()")
            return loaded
        finally:
            await connection.close()

    before = await read_load_time()
    await asyncio.to_thread(execute, server, "SELECT pg_reload_conf()")

    async def is_loaded() -> bool:
        return await read_load_time() != before

    await wait_until(is_loaded)


async def check(entry: Database) -> tuple[str, str]:
    """Create the tables; return the detail and the hint of the error, empty without one."""
    database = PostgresDatabase(entry, create=True)
    try:
        await database.check()
    except errors.AgentctlError as error:
        return error.detail, error.hint or error.cause or ""
    finally:
        await database.close()
    return "", ""


def as_user(server: PostgresServer, name: str, password_env: str = "") -> Database:
    url = server.url.replace("postgres@", f"{name}@")
    return Database("main", url, search_path=name, password_env=password_env)


async def test_password_may_have_any_character(
    strict: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = as_user(strict, "locked", "THE_PASSWORD")
    monkeypatch.setenv("THE_PASSWORD", PASSWORD)
    assert await check(entry) == ("", "")
    monkeypatch.setenv("THE_PASSWORD", "another")
    detail, hint = await check(entry)
    assert detail == "The database refuses the password"
    assert "password_env" in hint


async def test_refused_user_is_not_taken_for_a_wrong_password(strict: PostgresServer) -> None:
    detail, hint = await check(as_user(strict, "unknown"))
    assert detail == "The database refuses the user"
    assert "pg_hba.conf" in hint


async def test_transaction_timeout_of_the_user_is_named(strict: PostgresServer) -> None:
    database = PostgresDatabase(as_user(strict, "hurried"), create=True)
    try:
        with pytest.raises(errors.Unavailable) as raised:
            await database.write(SLOW.execute())
    finally:
        await database.close()
    assert raised.value.detail == "The database takes too long"
    assert "transaction_timeout" in str(raised.value.hint)


async def test_temp_file_limit_of_the_user_is_named(strict: PostgresServer) -> None:
    await asyncio.to_thread(
        execute,
        strict,
        "CREATE ROLE limited LOGIN SUPERUSER",
        "ALTER ROLE limited SET temp_file_limit = 0",
        "ALTER ROLE limited SET work_mem = '64kB'",
    )
    database = PostgresDatabase(as_user(strict, "limited"), create=True)
    try:
        with pytest.raises(errors.Unavailable) as raised:
            await database.read(LARGE_SORT)
    finally:
        await database.close()
    assert "temp_file_limit" in str(raised.value.hint)


async def fill(database: PostgresDatabase) -> None:
    for number in range(200):
        await database.write(FILL.execute(number=number))


async def test_full_queue_of_notifications_is_explained() -> None:
    """A session that listens and never ends its transaction keeps all notifications."""
    with run_postgres_server(settings=("max_notify_queue_pages=64",)) as server:
        database = PostgresDatabase(Database("main", server.url, search_path="full"), create=True)
        blocker = await asyncpg.connect(server.url)
        try:
            await blocker.execute("LISTEN anything")
            await blocker.execute("BEGIN; SELECT 1")
            with pytest.raises(errors.Unavailable) as raised:
                await fill(database)
        finally:
            await blocker.close()
            await database.close()
    assert raised.value.detail == "The database has no space for notifications"
    assert "idle in transaction" in str(raised.value.hint)


@contextlib.asynccontextmanager
async def tls_in_front(
    server: PostgresServer, context: ssl.SSLContext | None
) -> AsyncIterator[str]:
    """Offer TLS in front of a server, or refuse it without a context. Yield host and port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # SSLRequest: https://www.postgresql.org/docs/current/protocol-message-formats.html
        assert await reader.readexactly(8) == b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
        writer.write(b"N" if context is None else b"S")
        if context is not None:
            await writer.start_tls(context)
            back, forth = await asyncio.open_unix_connection(server.socket)
            await asyncio.gather(copy(reader, forth), copy(back, writer))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async with serve_connections(serve) as port:
        yield f"127.0.0.1:{port}"


def context_of(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize(
    ("names", "days", "tls", "knows", "message"),
    [
        (("localhost",), 1, "verify-full", True, ""),
        (("db.example",), 1, "verify-ca", True, ""),
        (("db.example",), 1, "verify-full", True, "for another host"),
        (("localhost",), -1, "verify-full", True, "has expired"),
        (("localhost",), -1, "verify-ca", True, "has expired"),
        (("localhost",), 1, "verify-full", False, "in tls_ca_file"),
    ],
)
async def test_certificate_that_is_refused_is_explained(
    server: PostgresServer,
    tmp_path: Path,
    names: tuple[str, ...],
    days: int,
    tls: TlsMode,
    knows: bool,
    message: str,
) -> None:
    certificate = create_certificate(tmp_path, *names, lifetime=timedelta(days=days))
    async with tls_in_front(server, context_of(certificate)) as address:
        url = f"postgresql://postgres@{address.replace('127.0.0.1', 'localhost')}/postgres"
        known = certificate if knows else None
        entry = Database("main", url, search_path="tls", tls=tls, tls_ca_file=known)
        detail, hint = await check(entry)
    assert detail == ("The connection to the database is not secure" if message else "")
    assert message in hint


async def test_server_without_tls_is_explained(server: PostgresServer) -> None:
    async with tls_in_front(server, None) as address:
        url = f"postgresql://postgres@{address}/postgres"
        detail, hint = await check(Database("main", url, search_path="tls", tls="require"))
    assert detail == "The connection to the database is not secure"
    assert "does not offer TLS" in hint


async def test_client_certificate_is_sent_with_verification(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "client"
    client.mkdir()
    mine = create_certificate(client, "me")
    certificate = create_certificate(tmp_path, "localhost")
    context = context_of(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(mine)
    async with tls_in_front(server, context) as address:
        url = f"postgresql://postgres@{address.replace('127.0.0.1', 'localhost')}/postgres"
        entry = Database("main", url, search_path="tls", tls="verify-full", tls_ca_file=certificate)
        assert (await check(entry))[0] != ""
        monkeypatch.setenv("PGSSLCERT", str(mine))
        assert await check(entry) == ("", "")
        monkeypatch.setenv("PGSSLCERT", str(tmp_path / "none.pem"))
        detail, cause = await check(entry)
    assert detail == "The client certificate for database 'main' cannot be read"
    assert "none.pem" in cause
