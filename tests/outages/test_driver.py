"""The PostgreSQL driver during failures of the server and of the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from agentctl import errors
from agentctl.config import settings
from agentctl.store.database import Sql, Statement, Steps, run_topic, unit, worker_topic
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.postgres.listener import BURST, SEND_SECONDS
from agentctl.store.repositories import audit, runs, sessions, workers
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.postgres_server import PostgresServer
from tests.kit.rows import START, a_run, a_session
from tests.outages.proxy import Proxy, proxied

WAIT = 0.4
STATEMENT = 0.5
"""Seconds that the driver under test waits for a connection and for a statement."""

PATIENT = {"wait_seconds": 60.0, "statement_seconds": 60.0}
"""The same for tests without a time limit: a busy machine must not exceed it."""

BOUND = STATEMENT + 1.0 + 0.5
"""Maximum seconds of a call: a statement, its response, and a margin for a busy machine."""


class Faulty:
    """A driver, and a proxy to its server that tests control."""

    def __init__(self, server: PostgresServer, way: Proxy, database: PostgresDatabase) -> None:
        self.server = server
        self.way = way
        self.database = database

    async def names(self) -> list[str]:
        """Return the ids of all sessions, read without the driver."""
        rows = await self.direct("SELECT session_id FROM sessions ORDER BY session_id")
        return [row[0] for row in rows]

    async def direct(self, sql: str) -> list[asyncpg.Record]:
        """Return the rows of a query, read without the driver."""
        schema = self.database._entry.search_path
        connection = await asyncpg.connect(
            self.server.url, server_settings={"search_path": schema}, timeout=PATIENCE
        )
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    async def notify(self, topic: str) -> None:
        """Send a notification, without the driver."""
        schema = self.database._entry.search_path
        await self.direct(f"SELECT pg_notify('agentctl', '{schema} {topic}')")

    async def kill_all(self) -> None:
        """End all connections of the driver, as an administrator may."""
        await self.direct(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'agentctl'"
        )

    async def create(self, session_id: str) -> None:
        """Create a session that does not exist."""
        assert await self.database.write(sessions.create(a_session(session_id)))

    async def read(self) -> None:
        await self.database.read(sessions.get("s1", EVERYONE))


@asynccontextmanager
async def faulty(
    server: PostgresServer,
    pool_size: int = 4,
    statement_seconds: float = STATEMENT,
    wait_seconds: float = WAIT,
) -> AsyncIterator[Faulty]:
    """Yield a driver on a new schema behind a proxy."""
    async with proxied(server.socket) as way:
        limits = pool_size, wait_seconds, statement_seconds
        schema = f"test_{uuid4().hex}"
        entry = settings.Database("main", way.url, *limits, search_path=schema)
        made = PostgresDatabase(replace(entry, url=server.url, statement_seconds=30), create=True)
        await made.check()
        await made.close()
        database = PostgresDatabase(entry, create=False)
        try:
            await database.check()
            yield Faulty(server, way, database)
        finally:
            await database.close()
        assert len(asyncio.all_tasks()) <= 2 + 3 * way.connections


async def failed(work: Awaitable[object]) -> errors.AgentctlError:
    """Return the error that the work raises within `BOUND` seconds."""
    with pytest.raises(errors.AgentctlError) as raised:
        async with asyncio.timeout(BOUND):
            await work
    return raised.value


@unit
def asleep(seconds: float) -> Steps[None]:
    yield Statement(Sql(f"SELECT pg_sleep({seconds})"))


async def test_cut_connections_are_replaced(server: PostgresServer) -> None:
    async with faulty(server, **PATIENT) as there:
        await asyncio.gather(*(there.create(f"a{n}") for n in range(4)))
        await there.kill_all()
        await asyncio.gather(*(there.read() for _ in range(8)))
        await there.kill_all()
        await asyncio.gather(*(there.create(f"b{n}") for n in range(8)))
        there.way.cut()
        assert await there.database.read(sessions.get("a0", EVERYONE)) is not None
        assert len(await there.names()) == 12


async def test_cut_connections_neither_lose_nor_repeat_writes(server: PostgresServer) -> None:
    async with faulty(server, **PATIENT) as there:
        done = set[str]()

        async def create(name: str) -> None:
            try:
                await there.create(name)
            except errors.Unavailable:
                return
            done.add(name)

        for first in range(0, 200, 20):
            work = [asyncio.create_task(create(f"s{n:03}")) for n in range(first, first + 20)]
            await asyncio.sleep(0.004)
            await (there.kill_all() if first % 40 else asyncio.to_thread(there.way.cut))
            await asyncio.gather(*work)
        names = await there.names()
        assert done <= set(names)
        assert len(done) >= 100


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_with_a_lost_response_is_made_once(
    server: PostgresServer, when: str
) -> None:
    async with faulty(server, **PATIENT) as there:

        async def cut() -> str:
            return when

        for n in range(3):
            there.way.at_commit = cut
            await there.create(f"s{n}")
        assert there.way.cut_commits == 3
        assert await there.names() == ["s0", "s1", "s2"]
        # Here the INSERT itself has reported its transaction.
        entry = audit.AuditRow(START, "me", "http", "x", None, "allowed", None, None, None)
        there.way.at_commit = cut
        await there.database.write(audit.append_entry(entry))
        assert there.way.cut_commits == 4
        assert len(await there.direct("SELECT seq FROM audit_log")) == 1


async def test_after_a_crash_a_reused_transaction_id_is_not_trusted(server: PostgresServer) -> None:
    """After a crash another transaction can have the id of a lost one."""
    # The driver waits for the end of the crash, however long that takes on a busy machine.
    async with faulty(server, **PATIENT) as there:

        async def crash() -> str:
            found = await there.direct("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            lost = int(found[0][0])
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            for n in range(10):
                made = await there.direct(
                    f"INSERT INTO removals VALUES ({n + 2}, 0, 0) RETURNING"
                    " pg_current_xact_id()::text"
                )
                if int(made[0][0]) >= lost:
                    break
            return "before"

        await there.direct("ALTER TABLE removals DROP CONSTRAINT removals_id_check")
        there.way.at_commit = crash
        try:
            await there.create("s1")
        except errors.OutcomeUnknown:
            assert await there.names() == []
        else:
            assert await there.names() == ["s1"]
        assert there.way.cut_commits == 1


async def test_a_silent_network_fails_in_time(server: PostgresServer) -> None:
    async with faulty(server) as there:
        await there.create("s1")
        there.way.hold()
        failures = await asyncio.gather(
            *(failed(there.read()) for _ in range(6)), failed(there.create("s2"))
        )
        assert {type(failure) for failure in failures} == {errors.Unavailable}
        assert there.database.load().in_use == 0
        there.way.release()
        await wait_until(lambda: _answers(there.read))
        await there.create("s3")
        assert await there.names() in (["s1", "s3"], ["s1", "s2", "s3"])


async def _answers(read: Callable[[], Awaitable[None]]) -> bool:
    try:
        await read()
    except errors.Unavailable:
        return False
    return True


async def test_a_silent_network_at_the_commit_is_an_unknown_outcome(server: PostgresServer) -> None:
    async with faulty(server) as there:
        await there.create("s1")

        async def hold() -> str:
            there.way.hold()
            await there.way.flowing()
            return "after"

        there.way.at_commit = hold
        with pytest.raises(errors.OutcomeUnknown):
            async with asyncio.timeout(2 * BOUND):
                await there.create("s2")
        there.way.release()
        await wait_until(lambda: _answers(there.read))


async def test_an_exhausted_pool_rejects_and_recovers(server: PostgresServer) -> None:
    async with faulty(server, pool_size=2, statement_seconds=2.0) as there:
        busy = [asyncio.create_task(there.database.read(asleep(30))) for _ in range(2)]
        await wait_until(lambda: there.database.load().in_use == 2)
        failure = await failed(there.read())
        assert failure.detail == "The database is busy"
        assert failure.headers() == {"Retry-After": "1"}
        busy[0].cancel()  # its caller goes away
        await there.read()
        await asyncio.wait(busy)
        assert isinstance(busy[1].exception(), errors.Unavailable)
        assert there.database.load().in_use == 0


CONFLICT = """\
CREATE SEQUENCE conflicts MAXVALUE {times} NO CYCLE

CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM nextval('conflicts');
    RAISE SQLSTATE '{state}';
EXCEPTION WHEN sequence_generator_limit_exceeded THEN
    RETURN NEW;
END $$

CREATE TRIGGER conflict BEFORE INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION conflict()"""


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_conflicts_are_retried_three_times(server: PostgresServer, state: str) -> None:
    async with faulty(server, **PATIENT) as there:
        for statement in CONFLICT.format(times=3, state=state).split("\n\n"):
            await there.direct(statement)
        await there.create("s1")
        await there.direct("ALTER SEQUENCE conflicts MAXVALUE 7")
        assert (await failed(there.create("s2"))).detail == "The database is busy"
        await there.create("s3")
        assert await there.names() == ["s1", "s3"]


async def test_a_deadlock_is_retried(server: PostgresServer) -> None:
    @unit
    def both(first: str, second: str) -> Steps[None]:
        for session_id in (first, second):
            sql = Sql(
                "UPDATE sessions SET run_count = run_count + 1 WHERE session_id = :session_id"
            )
            yield Statement(sql, {"session_id": session_id})
            yield Statement(Sql("SELECT pg_sleep(0.05)"))

    async with faulty(server, **PATIENT) as there:
        await there.create("a")
        await there.create("b")
        await there.direct("ALTER SYSTEM SET deadlock_timeout = '50ms'")
        await there.direct("SELECT pg_reload_conf()")
        writes = (both("a", "b"), both("b", "a"))
        await asyncio.gather(*(there.database.write(work) for work in writes))
        assert [tuple(row) for row in await there.direct("SELECT run_count FROM sessions")] == [
            (2,), (2,),
        ]  # fmt: skip


async def test_notifications_arrive_after_the_listener_is_lost(server: PostgresServer) -> None:
    async with faulty(server) as there:
        number = there.database.watch("run a")
        await wait_until(number)  # a new listener announces every topic

        async def hear() -> None:
            before = number()
            await there.notify("run a")
            await wait_until(lambda: number() != before)

        await hear()
        before = number()
        await there.kill_all()
        # Notifications of any topic may have been lost.
        await wait_until(lambda: number() != before)
        await hear()
        there.way.hold()
        before = number()
        await there.notify("run a")
        await asyncio.sleep(1.2)
        assert number() == before
        there.way.release()
        await wait_until(lambda: number() != before)
        await hear()


async def test_the_schema_of_a_user_may_have_any_name(server: PostgresServer) -> None:
    schema = "My tables"
    admin = await asyncpg.connect(server.url)
    await admin.execute(
        f'CREATE ROLE odd LOGIN; CREATE SCHEMA "{schema}" AUTHORIZATION odd;'
        f' ALTER ROLE odd SET search_path = "{schema}"'
    )
    entry = settings.Database("main", server.url.replace("postgres@", "odd@"))
    database = PostgresDatabase(entry, create=True)
    try:
        await database.check()
        number = database.watch("news")
        await wait_until(number)  # a new listener announces every topic
        before = number()
        await admin.execute(f"SELECT pg_notify('agentctl', '{schema} news')")
        await wait_until(lambda: number() != before)
    finally:
        await database.close()
        await admin.close()


async def test_a_database_that_cannot_store_every_text_gets_no_tables(
    server: PostgresServer,
) -> None:
    admin = await asyncpg.connect(server.url)
    await admin.execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    await admin.close()
    entry = settings.Database("main", server.url.replace("/postgres?", "/latin?"))
    database = PostgresDatabase(entry, create=True)
    with pytest.raises(errors.InvalidConfiguration) as raised:
        await database.check()
    await database.close()
    assert raised.value.detail == "The encoding of database 'main' is LATIN1"
    assert "createdb --encoding UTF8" in str(raised.value.hint)


class Watch:
    """The topics of two runs and of two workers, in a process that follows them."""

    def __init__(self, there: Faulty) -> None:
        self._there = there
        topics = (run_topic("a"), run_topic("b"), worker_topic("w1"), worker_topic("w2"))
        self._numbers = {topic: there.database.watch(topic) for topic in topics}
        self._last = there.database.watch("run last")

    async def wait_for_listener(self) -> None:
        """Wait until the process listens: a new listener announces every topic."""
        await wait_until(lambda: all(number() for number in self._numbers.values()))

    async def find_woken(self, statement: str) -> list[str]:
        """Execute a statement; return the topics that it wakes."""
        before = {topic: number() for topic, number in self._numbers.items()}
        await self._there.direct(statement)

        # Notifications arrive in their order.
        seen = self._last()
        await self._there.notify("run last")
        await wait_until(lambda: self._last() != seen)
        return [topic for topic, number in self._numbers.items() if number() != before[topic]]


WOKEN = {
    # Its process announces it after the commit, if another one has requested that.
    "INSERT INTO run_events (run_id, first_seq, last_seq, events) VALUES ('b', 0, 0, 'x')": [],
    "UPDATE runs SET cancel_requested_at = 1 WHERE run_id = 'a'": ["worker w1"],
    "UPDATE runs SET status = 'CANCELLED' WHERE run_id = 'a'": ["run a"],
    "UPDATE runs SET status = 'PAUSED' WHERE run_id = 'b'": ["run b"],
    "UPDATE sessions SET run_count = 3": [],
}
"""The topics that each statement wakes, in their order."""


async def test_notifications_wake_only_those_whom_they_concern(server: PostgresServer) -> None:
    async with faulty(server) as there:
        await there.create("s1")
        for run_id in ("a", "b"):
            run = a_run(run_id, owner="w1", background=False)
            assert await there.database.write(runs.create(run))
        watch = Watch(there)
        await watch.wait_for_listener()

        woken = {statement: await watch.find_woken(statement) for statement in WOKEN}
        assert woken == WOKEN


class Announcements:
    """The processes `w1` and `w2`, which announce stored events, and one with followers."""

    def __init__(self, follower: PostgresDatabase, url: str) -> None:
        entry = replace(follower._entry, url=url)
        self.follower = follower
        self.processes = {owner: PostgresDatabase(entry, create=False) for owner in ("w1", "w2")}
        self._numbers = {run_id: follower.watch(run_topic(run_id)) for run_id in ("a", "b")}
        self._last = {owner: follower.watch(run_topic(f"last-{owner}")) for owner in self.processes}

        # Each worker watches its cancel requests, and hears of requested announcements by that.
        self._requests = {
            owner: process.watch(worker_topic(owner)) for owner, process in self.processes.items()
        }

    async def wait_for_listeners(self) -> None:
        """Wait until all listen: a new listener announces every topic."""
        numbers = [*self._numbers.values(), *self._requests.values()]
        await wait_until(lambda: all(number() for number in numbers))

    async def request(self, owner: str, run_id: str) -> None:
        """Request the announcements of a run; return when one has arrived."""
        number = self.follower.watch(run_topic(run_id))
        before = number()
        self.follower.request_announcements(owner, [run_id])

        def has_arrived() -> bool:
            self.processes[owner].announce(run_id)
            return number() != before

        await wait_until(has_arrived)

    async def find_woken(self, owner: str) -> list[str]:
        """Announce both runs; return those whose followers wake."""
        await self.finish(owner)
        before = {run_id: number() for run_id, number in self._numbers.items()}
        for run_id in self._numbers:
            self.processes[owner].announce(run_id)
        await self.finish(owner)
        return [run_id for run_id, number in self._numbers.items() if number() != before[run_id]]

    async def finish(self, owner: str) -> None:
        """Wait for all earlier announcements of a process, which arrive in their order."""
        last = self._last[owner]
        # The first may belong to an announcement that was made before.
        for _ in range(2):
            seen = last()
            self.processes[owner].announce(f"last-{owner}")
            await wait_until(lambda seen=seen: last() != seen)  # type: ignore[misc]


@asynccontextmanager
async def announcing(server: PostgresServer) -> AsyncIterator[Announcements]:
    """Let two processes announce, each only its own last run."""
    async with faulty(server) as there, contextlib.AsyncExitStack() as stack:
        announcements = Announcements(there.database, server.url)
        for process in announcements.processes.values():
            stack.push_async_callback(process.close)
        await announcements.wait_for_listeners()
        for owner in announcements.processes:
            await announcements.request(owner, f"last-{owner}")
        yield announcements


async def test_stored_events_are_announced_to_followers_elsewhere_only(
    server: PostgresServer,
) -> None:
    async with announcing(server) as announcements:
        for owner in ("w1", "w2"):
            assert await announcements.find_woken(owner) == []

        await announcements.request("w1", "b")

        assert await announcements.find_woken("w1") == ["b"]
        assert await announcements.find_woken("w2") == []


async def test_many_announcements_are_few_messages(server: PostgresServer) -> None:
    async with announcing(server) as announcements:
        await announcements.request("w1", "b")
        async with listening(server) as messages:
            began = asyncio.get_running_loop().time()
            for _ in range(100):
                announcements.processes["w1"].announce("b")
                await asyncio.sleep(0.005)
            await announcements.finish("w1")
            await wait_until(lambda: any("last-w1" in message for message in messages))
            seconds = asyncio.get_running_loop().time() - began

    assert any(message.endswith(" runs b") for message in messages)
    assert len(messages) <= seconds / SEND_SECONDS + BURST + 1


@asynccontextmanager
async def listening(server: PostgresServer) -> AsyncIterator[list[str]]:
    """Yield the messages that any process sends, as they arrive."""
    messages = list[str]()
    connection = await asyncpg.connect(server.url)
    try:
        await connection.add_listener("agentctl", lambda *call: messages.append(call[-1]))
        yield messages
    finally:
        await connection.close()


async def test_a_heartbeat_survives_a_lost_connection(server: PostgresServer) -> None:
    async with faulty(server) as there:
        write = there.database.write_blocking
        row = WorkerRow("w1", "host", "boot", 1, 1, START, START)
        await asyncio.to_thread(write, workers.register(row))
        await there.kill_all()
        assert await asyncio.to_thread(write, workers.record_heartbeat("w1", 0))
        there.way.hold()
        await failed(asyncio.to_thread(write, workers.record_heartbeat("w1", 0)))
        there.way.release()
        assert await asyncio.to_thread(write, workers.record_heartbeat("w1", 0))


async def test_an_outage_is_few_lines_of_the_log(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with faulty(server) as there:
        there.database.changes()
        await there.read()
        await asyncio.to_thread(server.stop)
        with caplog.at_level(logging.INFO):
            for _ in range(20):
                await failed(there.read())
                await failed(there.create("s1"))
        await asyncio.to_thread(server.start)
        await wait_until(lambda: _answers(there.read))
    complaints = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    assert len(complaints) <= 6, complaints
    assert not [record for record in caplog.records if record.name == "asyncio"]
