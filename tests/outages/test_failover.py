"""The PostgreSQL driver after a failover, and without the way of its notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from agentctl.config.settings import Database
from agentctl.store.database import Sql
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import WorkerRow
from tests.kit.conditions import wait_until
from tests.kit.postgres_server import PostgresServer, execute, run_postgres_server, run_standby
from tests.kit.rows import START
from tests.outages.proxy import proxied
from tests.outages.test_driver import WAIT, failed, faulty

IS_STANDBY = Sql("SELECT pg_is_in_recovery()")


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with run_postgres_server() as primary:
        yield primary


async def test_connections_to_a_standby_are_not_used_again(primary: PostgresServer) -> None:
    """The name of the primary may lead to the old one for a while, which is a standby now."""
    async with faulty(primary) as there:
        await there.create("s1")
        with run_standby(primary) as standby:
            there.way.lead_to(standby.socket)
            there.way.cut()
            failure = await failed(there.create("s2"))
            assert failure.detail == "The database is read-only"
            assert await there.database.read(IS_STANDBY.value())
            # New connections lead to the primary; those to the standby stay open.
            there.way.lead_to(primary.socket)
            assert not await there.database.read(IS_STANDBY.value())
            await there.create("s2")
        assert await there.names() == ["s1", "s2"]


async def test_read_only_sessions_are_not_used_again(primary: PostgresServer) -> None:
    """An administrator makes the user read-only for a while, as providers do with a full disk."""
    async with faulty(primary) as there:
        setting = "ALTER ROLE postgres {} default_transaction_read_only"
        await asyncio.to_thread(execute, primary, f"{setting.format('SET')} = on")
        await there.kill_all()
        failure = await failed(there.create("s1"))
        assert failure.detail == "The database is read-only"
        await there.read()
        reset = "SET default_transaction_read_only = off", setting.format("RESET")
        await asyncio.to_thread(execute, primary, *reset)
        await failed(there.create("s1"))
        await there.create("s1")


async def test_a_heartbeat_does_not_need_the_listen_url(primary: PostgresServer) -> None:
    """Notifications are lost with their way; a worker without a heartbeat would lose its runs."""
    async with proxied(primary.socket) as way:
        entry = Database(
            "main", primary.url, wait_seconds=WAIT, search_path="test", listen_url=way.url
        )
        database = PostgresDatabase(entry, create=True)
        try:
            await database.check()
            write = database.write_blocking
            row = WorkerRow("w1", "host", "boot", 1, 1, START, START)
            await asyncio.to_thread(write, workers.register(row))
            database.watch("news")
            await wait_until(lambda: database.load().is_notified)
            way.hold()
            way.cut()
            for _ in range(3):
                assert await asyncio.to_thread(write, workers.record_heartbeat("w1", 0))
            await wait_until(lambda: database.load().is_notified is False)
            way.release()
            await wait_until(lambda: database.load().is_notified)
            assert await asyncio.to_thread(write, workers.record_heartbeat("w1", 0))
        finally:
            await database.close()


async def test_a_listen_url_of_a_standby_is_not_used(primary: PostgresServer) -> None:
    async with proxied(primary.socket) as way:
        entry = Database("main", primary.url, search_path="test", listen_url=way.url)
        database = PostgresDatabase(entry, create=True)
        try:
            await database.check()
            with run_standby(primary) as standby:
                way.lead_to(standby.socket)
                row = WorkerRow("w1", "host", "boot", 1, 1, START, START)
                register = workers.register(row)
                await asyncio.to_thread(database.write_blocking, register)
                database.watch("news")
                await wait_until(lambda: database.load().is_notified is False)
                beat = workers.record_heartbeat("w1", 0)
                assert await asyncio.to_thread(database.write_blocking, beat)
        finally:
            await database.close()
