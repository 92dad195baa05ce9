"""The SQLite driver: group commit, snapshots, other processes, failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from agentctl import errors
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.repositories import run_reads, runs, sessions
from agentctl.store.sqlite import connection, database
from agentctl.store.sqlite.connection import BusyHandler
from agentctl.store.sqlite.database import SqliteDatabase, Writer
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment, start_module
from tests.kit.rows import START, a_run, a_session, a_session_with_run, an_end
from tests.store.writing_process import take

COUNT = Sql("SELECT run_count FROM sessions WHERE session_id = :id")


@unit
def count(session_id: str = "s1") -> Steps[int]:
    rows = yield Statement(COUNT, {"id": session_id})
    return rows[0][0]  # type: ignore[no-any-return]


@unit
def fail_after(session_id: str = "s1") -> Steps[None]:
    yield from take(session_id)
    raise errors.Conflict("on purpose")


def test_units_of_a_group_copy_no_pages_to_a_temporary_file(sqlite: SqliteDatabase) -> None:
    """SQLite keeps the pages that a savepoint would restore, beyond 64 KB in a deleted file."""
    gate = threading.Event()
    before = list_open_files()
    opened = set[str]()

    @unit
    def held() -> Steps[None]:
        gate.wait(PATIENCE)
        yield from take()

    @unit
    def change_many_pages() -> Steps[None]:
        yield Statement(Sql("UPDATE sessions SET metadata = 'b'"))
        opened.update(list_open_files())

    async def main() -> None:
        for number in range(60):
            row = a_session(f"s{number}", metadata="a" * 3_000)
            await sqlite.write(sessions.create(row))
        waiting = [asyncio.ensure_future(sqlite.write(work)) for work in (held(), take())]
        waiting.append(asyncio.ensure_future(sqlite.write(change_many_pages())))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert str(sqlite.path) in opened
    assert {name for name in opened - before if name.endswith("(deleted)")} == set()


def list_open_files() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The descriptor that lists the folder.
            found.add(str(descriptor.readlink()))
    return found


def test_many_writers_each_get_their_own_result(sqlite: SqliteDatabase) -> None:
    async def client() -> list[int]:
        return [await sqlite.write(take()) for _ in range(20)]

    async def main() -> list[list[int]]:
        await sqlite.write(sessions.create(a_session()))
        return await asyncio.gather(*(client() for _ in range(64)))

    taken = asyncio.run(main())
    assert sorted(number for numbers in taken for number in numbers) == list(range(1, 64 * 20 + 1))
    assert all(numbers == sorted(numbers) for numbers in taken)
    assert sqlite.read_blocking(count()) == 64 * 20


def count_units_of_groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of units of each transaction."""
    sizes: list[int] = []
    begin = Writer._begin

    def count_units(writer: Writer, connection: apsw.Connection, group: list[Any]) -> None:
        sizes.append(len(group))
        begin(writer, connection, group)

    monkeypatch.setattr(Writer, "_begin", count_units)
    return sizes


async def take_at_once(sqlite: SqliteDatabase, number: int) -> None:
    """Write some units that wait for the thread together; the first one may have begun alone."""
    gate = threading.Event()

    @unit
    def held() -> Steps[int]:
        gate.wait(PATIENCE)
        return (yield from take())

    waiting = [asyncio.ensure_future(sqlite.write(held()))]
    waiting += [asyncio.ensure_future(sqlite.write(take())) for _ in range(number - 1)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*waiting)


def test_waiting_units_share_one_commit(
    sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.write_blocking(sessions.create(a_session()))
    sizes = count_units_of_groups(monkeypatch)
    asyncio.run(take_at_once(sqlite, 51))

    assert sum(sizes) == 51
    assert len(sizes) <= 2


def test_units_beyond_a_full_group_are_in_the_next_ones(
    sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.write_blocking(sessions.create(a_session()))
    monkeypatch.setattr(database, "GROUP", 2)
    sizes = count_units_of_groups(monkeypatch)
    asyncio.run(take_at_once(sqlite, 7))

    assert sum(sizes) == 7
    assert max(sizes) == 2


def test_a_failed_unit_does_not_undo_its_group(sqlite: SqliteDatabase) -> None:
    wrong = Sql("UPDATE sessions SET no_such_column = 1")
    duplicate = Sql("UPDATE runs SET run_id = 'r1' WHERE run_id = 'r2'")

    @unit
    def broken(sql: Sql) -> Steps[None]:
        yield from take()
        yield Statement(sql)

    async def main() -> list[object]:
        await sqlite.write(a_session_with_run())
        await sqlite.write(runs.create(a_run("r2")))
        units = [take(), fail_after(), take(), broken(wrong), broken(duplicate), take()]
        writes = (sqlite.write(unit) for unit in units)
        return await asyncio.gather(*writes, return_exceptions=True)

    results = asyncio.run(main())
    assert [r for r in results if isinstance(r, int)] == [3, 4, 5]
    assert [type(r) for r in results if not isinstance(r, int)] == [
        errors.Conflict,
        errors.InternalError,
        errors.InternalError,
    ]
    assert sqlite.read_blocking(count()) == 5


def test_a_unit_that_fails_alone_is_executed_once(sqlite: SqliteDatabase) -> None:
    """Only the other units of a group are executed again."""
    executions: list[str] = []

    @unit
    def fail() -> Steps[None]:
        executions.append("begun")
        yield from sessions.create(a_session("s3"))
        raise errors.Conflict("on purpose")

    with pytest.raises(errors.Conflict):
        sqlite.write_blocking(fail())
    assert executions == ["begun"]
    assert sqlite.read_blocking(sessions.get("s3", EVERYONE)) is None
    assert not sqlite.write_failed


def test_a_failed_statement_shows_no_text_of_the_library(
    sqlite: SqliteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    @unit
    def broken() -> Steps[None]:
        yield Statement(Sql("SELECT secret_name FROM sessions"))

    caplog.set_level(logging.ERROR, "agentctl.store")
    with pytest.raises(errors.InternalError) as caught:
        sqlite.read_blocking(broken())
    assert "secret_name" not in caught.value.detail
    assert caught.value.__suppress_context__
    assert "secret_name" in caplog.text


def test_a_read_sees_one_snapshot_during_writes(sqlite: SqliteDatabase) -> None:
    async def main() -> None:
        await sqlite.write(sessions.create(a_session()))
        reading = threading.Event()
        written = threading.Event()

        @unit
        def twice() -> Steps[tuple[int, int]]:
            first = yield from count()
            reading.set()
            written.wait(PATIENCE)
            return first, (yield from count())

        snapshot = asyncio.ensure_future(sqlite.read(twice(), size="large"))
        await asyncio.to_thread(reading.wait, 10)
        assert await sqlite.write(take()) == 1
        assert await sqlite.read(count()) == 1
        written.set()
        assert await snapshot == (0, 0)
        assert await sqlite.read(count(), size="large") == 1

    asyncio.run(main())


def test_a_read_of_unknown_size_leaves_the_loop_if_it_is_long(sqlite: SqliteDatabase) -> None:
    count_up = Sql(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers"
        " WHERE n < :most) SELECT count(*) FROM numbers"
    )
    loop = threading.current_thread()

    @unit
    def counted(most: int) -> Steps[tuple[int, bool]]:
        yield Statement(Sql("SELECT 1"))
        rows = yield Statement(count_up, {"most": most})
        return rows[0][0], threading.current_thread() is loop

    async def main() -> None:
        for _ in range(3):
            assert await sqlite.read(counted(10), size="unknown") == (10, True)
            assert await sqlite.read(counted(100_000), size="unknown") == (100_000, False)
        assert await sqlite.read(counted(100_000)) == (100_000, True)
        assert await sqlite.read(counted(10), size="large") == (10, False)

    asyncio.run(main())


def test_a_read_cannot_write(sqlite: SqliteDatabase) -> None:
    asyncio.run(sqlite.write(sessions.create(a_session())))
    for size in ("small", "unknown", "large"):
        with pytest.raises(errors.Unavailable):
            asyncio.run(sqlite.read(take(), size=size))
    assert sqlite.read_blocking(count()) == 0


def test_a_write_continues_after_its_task_is_cancelled(sqlite: SqliteDatabase) -> None:
    async def main() -> int:
        await sqlite.write(sessions.create(a_session()))
        gate = threading.Event()

        @unit
        def held() -> Steps[int]:
            gate.wait(PATIENCE)
            return (yield from take())

        task = asyncio.ensure_future(sqlite.write(held()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        gate.set()
        return await sqlite.write(take())

    assert asyncio.run(main()) == 2


def _threads() -> set[threading.Thread]:
    """Return the threads of databases in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("store-")}


def test_close_finishes_accepted_writes(sqlite: SqliteDatabase, path: Path) -> None:
    async def main() -> None:
        await sqlite.write(sessions.create(a_session()))
        writes = [asyncio.ensure_future(sqlite.write(take())) for _ in range(100)]
        await asyncio.sleep(0)
        await sqlite.read(count(), size="large")
        await sqlite.close()
        assert sorted(await asyncio.gather(*writes)) == list(range(1, 101))
        await sqlite.close()
        for call in (
            sqlite.read(count()),
            sqlite.read(count(), size="large"),
            sqlite.write(take()),
        ):
            with pytest.raises(errors.Unavailable, match="closed"):
                await call

    before = _threads()
    asyncio.run(main())
    assert _threads() <= before
    files = [file.name for file in path.parent.glob("agentctl.db*") if file.is_file()]
    assert files == ["agentctl.db"]


def test_connections_and_threads_are_created_when_needed(sqlite: SqliteDatabase) -> None:
    before = _threads()
    asyncio.run(sqlite.read(sessions.get("s1", EVERYONE)))
    assert _threads() <= before


def test_thread_of_an_open_database_does_not_keep_its_process(sqlite: SqliteDatabase) -> None:
    before = set(threading.enumerate())
    sqlite.write_blocking(sessions.create(a_session()))
    (writer,) = set(threading.enumerate()) - before
    assert writer.daemon


def test_write_waits_as_long_as_the_connections_do(sqlite: SqliteDatabase) -> None:
    assert database.WAIT_SECONDS == connection.WAIT_MILLISECONDS / 1_000


def test_lock_that_sqlite_does_not_wait_for_is_tried_again_after_a_pause(
    sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reports a lock at once while another process recovers the log."""
    pauses: list[float] = []
    begins = 0
    begin = Writer._begin

    def refuse_twice(writer: Writer, *arguments: Any) -> None:
        nonlocal begins
        begins += 1
        if begins <= 2:
            raise apsw.BusyError("the log is recovered")
        begin(writer, *arguments)

    monkeypatch.setattr(database, "WAIT_SECONDS", 3_600.0)
    monkeypatch.setattr(Writer, "_begin", refuse_twice)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)
    monkeypatch.setattr(database, "time", clock)
    sqlite.write_blocking(sessions.create(a_session("s7")))
    assert sqlite.read_blocking(sessions.get("s7", EVERYONE)) is not None
    assert pauses == [database.PAUSE_SECONDS] * 2
    assert database.PAUSE_SECONDS > 0


def other_process(path: Path, writes: int) -> subprocess.Popen[bytes]:
    words = (str(path), str(writes))
    return start_module(
        "tests.store.writing_process", *words, env=base_environment(), stdout=subprocess.PIPE
    )


def test_the_commit_of_another_process_is_detected(sqlite: SqliteDatabase, path: Path) -> None:
    before = sqlite.changes()
    assert sqlite.changes() == before
    process = other_process(path, 0)
    deadline = time.monotonic() + PATIENCE
    while sqlite.changes() == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sqlite.changes() != before
    assert sqlite.read_blocking(sessions.get("s1", EVERYONE)) is not None
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_a_busy_process_lets_another_one_write(sqlite: SqliteDatabase, path: Path) -> None:
    async def main() -> int:
        await sqlite.write(sessions.create(a_session()))
        process = other_process(path, 50)
        assert process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        written = 0
        while process.poll() is None:
            await asyncio.gather(*(sqlite.write(take()) for _ in range(16)))
            written += 16
        process.communicate()
        assert process.returncode == 0
        return written

    written = asyncio.run(main())
    assert sqlite.read_blocking(count()) == written + 50


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentctl.store.sqlite.connection.WAIT_MILLISECONDS", 50)
    monkeypatch.setattr("agentctl.store.sqlite.database.WAIT_SECONDS", 0.05)


@pytest.fixture
def holder(path: Path) -> Iterator[apsw.Connection]:
    """Another program with a connection to the file. Request it after `sqlite`."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    yield connection
    connection.close(True)


@pytest.mark.usefixtures("impatient")
def test_a_foreign_lock_is_reported_and_ends(
    sqlite: SqliteDatabase, holder: apsw.Connection
) -> None:
    async def main() -> None:
        holder.execute("BEGIN IMMEDIATE")
        assert not sqlite.write_failed
        units = (sqlite.write(take()), sqlite.write(sessions.create(a_session("s2"))))
        for result in await asyncio.gather(*units, return_exceptions=True):
            assert isinstance(result, errors.Unavailable)
            assert result.detail == "The database is busy"
        assert sqlite.write_failed
        assert await sqlite.read(sessions.get("s2", EVERYONE)) is None
        holder.execute("ROLLBACK")
        assert await sqlite.write(sessions.create(a_session("s2")))

    asyncio.run(main())


@pytest.fixture
def allowed_waits(holder: apsw.Connection, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which SQLite may wait for the lock of `holder`, which is released then."""
    allowed: list[float] = []

    class ReleasingHandler(BusyHandler):
        def __call__(self, attempts: int) -> bool:
            allowed.append(self.seconds)
            holder.execute("ROLLBACK")
            return True

    monkeypatch.setattr(database, "BusyHandler", ReleasingHandler)
    return allowed


def test_writer_waits_for_a_lock_until_the_deadline_of_its_units(
    sqlite: SqliteDatabase,
    holder: apsw.Connection,
    allowed_waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait of SQLite is shorter by the time for which a unit has waited for the thread."""
    monkeypatch.setattr(database, "WAIT_SECONDS", 60.0)
    holder.execute("BEGIN IMMEDIATE")
    sqlite.write_blocking(sessions.create(a_session()))
    (seconds,) = allowed_waits
    assert 0 < seconds < 60


def lock_before_group(holder: apsw.Connection, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the lock of the file just before the writer begins a group of some units."""
    begin = Writer._begin

    def begin_locked(writer: Writer, connection: apsw.Connection, group: list[Any]) -> None:
        if len(group) == size:
            holder.execute("BEGIN IMMEDIATE")
        begin(writer, connection, group)

    monkeypatch.setattr(Writer, "_begin", begin_locked)


async def test_writer_waits_until_the_first_deadline_of_a_group(
    sqlite: SqliteDatabase,
    holder: apsw.Connection,
    allowed_waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = threading.Event()
    gate = threading.Event()

    @unit
    def hold() -> Steps[int]:
        held.set()
        gate.wait(PATIENCE)
        return (yield from take())

    await sqlite.write(sessions.create(a_session()))
    lock_before_group(holder, 3, monkeypatch)

    # Three units come while the writer executes another one: they are its next group.
    writes = [asyncio.ensure_future(sqlite.write(hold()))]
    await asyncio.to_thread(held.wait, PATIENCE)
    for seconds in (3_600.0, 60.0, 3_600.0):
        monkeypatch.setattr(database, "WAIT_SECONDS", seconds)
        writes.append(asyncio.ensure_future(sqlite.write(take())))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*writes)

    (allowed_seconds,) = allowed_waits
    assert 0 < allowed_seconds <= 60


def test_writer_without_its_file_fails_its_units_until_the_file_is_back(
    sqlite: SqliteDatabase, path: Path
) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    for _ in range(2):
        with pytest.raises(errors.Unavailable):
            sqlite.write_blocking(sessions.create(a_session()))
    moved.rename(path)
    assert sqlite.write_blocking(sessions.create(a_session()))


def test_writer_that_never_had_its_file_ends(sqlite: SqliteDatabase, path: Path) -> None:
    # Servers that other tests share have databases in this process, too.
    others = _threads()
    path.rename(path.with_name("moved"))
    with pytest.raises(errors.Unavailable):
        sqlite.write_blocking(take())
    sqlite.close_blocking()
    assert _threads() <= others


def test_fault_of_the_writer_is_logged_and_no_outage(
    sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_begin", fail)
        with pytest.raises(errors.InternalError):
            sqlite.write_blocking(sessions.create(a_session()))
    assert "LookupError: on purpose" in caplog.text
    assert not sqlite.write_failed
    assert sqlite.write_blocking(sessions.create(a_session()))


def test_check_fails_if_the_file_is_gone(sqlite: SqliteDatabase, path: Path) -> None:
    asyncio.run(sqlite.check())
    sqlite.close_blocking()
    with pytest.raises(errors.Unavailable):
        asyncio.run(sqlite.check())


def test_a_full_disk_fails_the_whole_group(sqlite: SqliteDatabase) -> None:
    """A page limit simulates a full disk: SQLite reports both as SQLITE_FULL."""

    @unit
    def narrow() -> Steps[None]:
        yield Statement(Sql("PRAGMA max_page_count = 60"))

    @unit
    def fill() -> Steps[bool]:
        return (yield from sessions.create(a_session("big", metadata="x" * 1_000_000)))

    @unit
    def widen() -> Steps[None]:
        yield Statement(Sql("PRAGMA max_page_count = 100000"))

    async def main() -> list[object]:
        await sqlite.write(sessions.create(a_session()))
        await sqlite.write(narrow())
        units = (sqlite.write(take()), sqlite.write(fill()), sqlite.write(take()))
        results: list[object] = list(await asyncio.gather(*units, return_exceptions=True))
        await sqlite.write(widen())
        assert await sqlite.write(fill())
        return results

    first, full, last = asyncio.run(main())
    assert isinstance(full, errors.Unavailable)
    assert full.detail == "The database disk is full"
    told = sum(isinstance(result, int) for result in (first, last))
    assert sqlite.read_blocking(count()) == told


@unit
def one_after(statements: list[str]) -> Steps[int]:
    """Write, and then do something that no repository does."""
    taken = yield from take()
    for sql in statements:
        yield Statement(Sql(sql))
    return taken


# Effects of a failing disk on SQLite: the commit fails, or the transaction is rolled back.
COMMIT_FAILS = ["PRAGMA defer_foreign_keys = ON", "UPDATE runs SET session_id = 'absent'"]
UNDONE = ["ROLLBACK", "SELECT no_such_column"]


@pytest.mark.parametrize("statements", [COMMIT_FAILS, UNDONE])
def test_no_unit_of_a_lost_transaction_succeeds(
    sqlite: SqliteDatabase, statements: list[str]
) -> None:
    async def main() -> list[object]:
        await sqlite.write(a_session_with_run())
        gate = threading.Event()

        @unit
        def held() -> Steps[int]:
            gate.wait(PATIENCE)
            return (yield from take())

        first = asyncio.ensure_future(sqlite.write(held()))
        await asyncio.sleep(0)
        units = (take(), one_after(statements), take())
        writes = [asyncio.ensure_future(sqlite.write(unit)) for unit in units]
        await asyncio.sleep(0)
        gate.set()
        results: list[object] = list(await asyncio.gather(first, *writes, return_exceptions=True))
        kept = await sqlite.read(count())
        assert kept - 1 == sum(isinstance(result, int) for result in results)
        assert await sqlite.write(take()) == kept + 1
        return results

    results = asyncio.run(main())
    assert isinstance(results[2], errors.InternalError)
    assert not [r for r in results if not isinstance(r, int | errors.InternalError)]


def test_units_of_a_lost_transaction_get_the_error_that_lost_it(sqlite: SqliteDatabase) -> None:
    gate = threading.Event()

    @unit
    def hold() -> Steps[int]:
        gate.wait(PATIENCE)
        return (yield from take())

    @unit
    def fill_the_disk() -> Steps[None]:
        yield Statement(Sql("ROLLBACK"))
        raise apsw.FullError("on purpose")

    async def main() -> list[object]:
        await sqlite.write(sessions.create(a_session()))
        # The failed unit makes the group run again, each unit in a savepoint.
        units = (hold(), fail_after(), fill_the_disk(), take())
        writes = [asyncio.ensure_future(sqlite.write(unit)) for unit in units]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(*writes, return_exceptions=True))

    _, failed, full, last = asyncio.run(main())
    assert isinstance(failed, errors.Conflict)
    for result in (full, last):
        assert isinstance(result, errors.Unavailable)
        assert result.detail == "The database disk is full"


def test_the_writer_survives_any_exception_of_a_unit(sqlite: SqliteDatabase) -> None:
    class Odd(BaseException):
        pass

    @unit
    def odd() -> Steps[None]:
        yield from take()
        raise Odd

    async def main() -> None:
        await sqlite.write(sessions.create(a_session()))
        with pytest.raises(Odd):
            await sqlite.write(odd())
        assert await sqlite.write(take()) == 1

    asyncio.run(main())


def test_a_write_is_stored_after_its_event_loop_closed(
    sqlite: SqliteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    @unit
    def held() -> Steps[int]:
        gate.wait(PATIENCE)
        return (yield from take())

    async def leave() -> None:
        await sqlite.write(sessions.create(a_session()))
        task = asyncio.ensure_future(sqlite.write(held()))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    gate.set()
    sqlite.close_blocking()
    assert "event loop was closed" in caplog.text
    with closing(apsw.Connection(str(sqlite.path))) as connection:
        assert connection.execute("SELECT run_count FROM sessions").fetchall() == [(1,)]


def test_a_thread_writes_without_an_event_loop(sqlite: SqliteDatabase) -> None:
    assert sqlite.write_blocking(sessions.create(a_session()))
    threads = [threading.Thread(target=sqlite.write_blocking, args=(take(),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sqlite.write_blocking(take()) == 21
    with closing(apsw.Connection(str(sqlite.path))) as connection:
        assert connection.execute("SELECT run_count FROM sessions").fetchall() == [(21,)]


def test_a_thread_writes_next_to_tasks_and_gets_its_error(sqlite: SqliteDatabase) -> None:
    @unit
    def odd() -> Steps[None]:
        yield from take()
        raise LookupError

    async def main() -> None:
        await sqlite.write(sessions.create(a_session()))
        tasks = [asyncio.ensure_future(sqlite.write(take())) for _ in range(5)]
        await asyncio.sleep(0)
        assert sqlite.write_blocking(take()) == 6  # on the loop's own thread, which waits
        with pytest.raises(LookupError):
            await asyncio.to_thread(sqlite.write_blocking, odd())
        with pytest.raises(errors.InternalError):
            await asyncio.to_thread(sqlite.write_blocking, one_after(["SELECT nothing"]))
        assert await asyncio.to_thread(sqlite.write_blocking, take()) == 7
        assert await asyncio.gather(*tasks) == [1, 2, 3, 4, 5]

    asyncio.run(main())


def test_a_closed_database_rejects_a_thread(sqlite: SqliteDatabase) -> None:
    sqlite.close_blocking()
    with pytest.raises(errors.Unavailable, match="closed"):
        sqlite.write_blocking(take())


def test_concurrent_threads_store_one_end(sqlite: SqliteDatabase) -> None:
    asyncio.run(sqlite.write(a_session_with_run()))
    asyncio.run(sqlite.write(runs.claim("r1", 1, "w1", START)))
    asyncio.run(sqlite.write(runs.request_cancel("r1", START, "ann", None)))
    statuses = ["COMPLETED", "ERROR", "CANCELLED"] * 4
    start = threading.Barrier(len(statuses))
    won: list[str] = []

    async def finish_all(status: str) -> None:
        ends = (sqlite.write(runs.finish(an_end(status=status))) for _ in range(5))
        won.extend(status for done in await asyncio.gather(*ends) if done)

    def race(status: str) -> None:
        start.wait()
        asyncio.run(finish_all(status))

    threads = [threading.Thread(target=race, args=(status,)) for status in statuses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = sqlite.read_blocking(run_reads.get_state("r1"))
    session = sqlite.read_blocking(sessions.get("s1", EVERYONE))
    assert state is not None
    assert session is not None
    assert [state.status] == won
    assert (session.total_tokens, session.last_status) == (3, state.status)


def test_a_run_is_not_cancelled_without_a_request(sqlite: SqliteDatabase) -> None:
    async def main() -> None:
        await sqlite.write(a_session_with_run())
        with pytest.raises(errors.InternalError):
            await sqlite.write(runs.finish(an_end(status="CANCELLED")))

    asyncio.run(main())
    state = sqlite.read_blocking(run_reads.get_state("r1"))
    assert state is not None
    assert state.status == "PENDING"
