"""The writes of a plain run in one statement have the same effects as those of its units."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from agentctl.records.runs import NewRun, RunEnd
from agentctl.records.sessions import SessionRow
from agentctl.store.database import Steps, Work, unit
from agentctl.store.postgres import plain_runs
from agentctl.store.repositories import audit, events, runs, sessions
from agentctl.store.repositories.events import Batch
from agentctl.store.visibility import EVERYONE, Visibility
from tests.conditions import PATIENCE
from tests.postgres import PostgresUnderTest
from tests.store.rows import START, a_run, a_session, an_end

ENTRY = audit.AuditRow(START, "user:ann", "http", "create_run", "run:r1", "allowed", None,
                            None, "q1")  # fmt: skip

ANN = Visibility(everyone=False, user_id="ann")

TABLES = ("sessions", "runs", "run_events", "audit_log", "usage_ends")


@pytest.fixture
def empty(postgres: PostgresUnderTest) -> Iterator[PostgresUnderTest]:
    postgres.runner.run(postgres.empty())
    yield postgres
    postgres.runner.run(postgres.empty())


async def read_tables(postgres: PostgresUnderTest) -> dict[str, list[dict[str, Any]]]:
    async with postgres.connected() as connection:
        found = {
            table: [
                dict(row) for row in await connection.fetch(f"SELECT * FROM {table} ORDER BY 1")
            ]
            for table in TABLES
        }
    for row in (*found["audit_log"], *found["usage_ends"]):
        del row["seq"]
    return found


@unit
def _start_by_units(
    session: SessionRow, visibility: Visibility, run: NewRun, entry: Any
) -> Steps[None]:
    stored = yield from sessions.get_or_create_for_run(session, visibility)
    assert isinstance(stored, SessionRow)
    seq = 1 if stored is session else None
    yield from runs.create(run, seq)
    yield from audit.append_entry(entry)


def _start(session_id: str = "s1", run_id: str = "r1", **given: Any) -> tuple[Any, ...]:
    run = a_run(
        run_id,
        session_id,
        background=False,
        user_id="ann",
        created_at=START + 5,
        session_name="hello",
        owner="w1",
        **given,
    )
    session = a_session(
        session_id,
        first_status="RUNNING",
        component_id="echo",
        component_data="{}",
        session_name="hello",
    )
    return session, ANN, run, ENTRY


def _prepare(**session: Any) -> Work[Any]:
    return sessions.create(a_session("s1", component_data="{}", **session))


STARTS: dict[str, Work[Any] | None] = {
    "a new session": None,
    "a session with a component": _prepare(session_name="named", now=START - 9),
    "a session without a name": _prepare(now=START + 99),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_start_has_the_effects_of_its_units(empty: PostgresUnderTest, case: str) -> None:
    async def compare() -> None:
        found = []
        for by_units in (True, False):
            await empty.empty()
            if (prepared := STARTS[case]) is not None:
                await empty.database.write(prepared)
            session, visibility, run, entry = _start()
            if by_units:
                await empty.database.write(_start_by_units(session, visibility, run, entry))
            else:
                work = plain_runs.start(session, visibility, run, entry._asdict())
                started = await empty.database.write(work)
                assert started == ("ann", None, case == "a new session")
            found.append(await read_tables(empty))
        assert found[0] == found[1]
        assert len(found[0]["runs"]) == len(found[0]["audit_log"]) == 1

    empty.runner.run(compare())


@pytest.mark.parametrize(
    "prepared",
    [_prepare(user_id="bob"), _prepare(session_type="team"), sessions.create(a_session("s1"))],
)
def test_an_uncommon_start_changes_nothing(empty: PostgresUnderTest, prepared: Work[Any]) -> None:
    async def start() -> None:
        await empty.database.write(prepared)
        before = await read_tables(empty)
        session, visibility, run, entry = _start()
        work = plain_runs.start(session, visibility, run, entry._asdict())
        assert await empty.database.write(work) is None
        assert await read_tables(empty) == before

    empty.runner.run(start())


@unit
def _many_runs() -> Steps[None]:
    """Two root runs of s1, a member of the second one, and a root run of s2."""
    for session_id in ("s1", "s2"):
        yield from sessions.create(a_session(session_id, component_data="{}"))
    for run_id, session_id, parent in (
        ("r1", "s1", None),
        ("r2", "s1", None),
        ("m3", "s1", "r2"),
        ("r4", "s2", None),
    ):
        yield from runs.create(
            a_run(run_id, session_id, background=False, parent_run_id=parent, owner="w1")
        )


@unit
def _end_by_units(end: RunEnd, last: Batch | None) -> Steps[None]:
    if last is not None:
        yield from events.append_batch(
            end.run_id, last.attempt, last.first_seq, last.last_seq, last.events
        )
    assert (yield from runs.finish(end))


BATCH = Batch("r4", 1, 0, 3, "RunStarted {}\n")

ENDS: dict[str, tuple[RunEnd, Batch | None]] = {
    "the newest run": (an_end("r4"), None),
    "a run with events": (an_end("r4", "ERROR", error_code="INTERNAL"), BATCH),
    "a run before another one": (an_end("r1"), None),
    "the run of a member": (an_end("m3", history=None), None),
    "a run without usage": (an_end("r4", metrics=None, history=None), None),
    "a run that ended before its session changed": (an_end("r4", finished_at=START - 5), None),
}


@pytest.mark.parametrize("case", ENDS)
def test_an_end_has_the_effects_of_its_units(empty: PostgresUnderTest, case: str) -> None:
    end, last = ENDS[case]

    async def compare() -> None:
        found = []
        works: list[Callable[..., Work[Any]]] = [_end_by_units, plain_runs.end]
        for build in works:
            await empty.empty()
            await empty.database.write(_many_runs())
            await empty.database.write(build(end, last))
            found.append(await read_tables(empty))
        assert found[0] == found[1]
        (ended,) = [row for row in found[1]["runs"] if row["run_id"] == end.run_id]
        assert ended["status"] == end.status

    empty.runner.run(compare())


@pytest.mark.parametrize(
    "end", [an_end("r2"), an_end("r4", attempt=2), an_end("absent")], ids=lambda end: end.run_id
)
def test_an_uncommon_end_changes_nothing(empty: PostgresUnderTest, end: RunEnd) -> None:
    """After r2 only a run of a member was created."""

    async def store() -> None:
        await empty.database.write(_many_runs())
        before = await read_tables(empty)
        assert await empty.database.write(plain_runs.end(end, BATCH)) is None
        assert await read_tables(empty) == before

    empty.runner.run(store())


def test_a_repeated_write_of_a_plain_run_changes_nothing(empty: PostgresUnderTest) -> None:
    async def repeat() -> None:
        session, visibility, run, entry = _start()
        start = plain_runs.start(session, visibility, run, entry._asdict())
        assert await empty.database.write(start)
        async with empty.connected():
            await _fails_or_finds_nothing(empty, start)
        end = plain_runs.end(an_end("r1"), None)
        assert await empty.database.write(end)
        before = await read_tables(empty)
        assert await empty.database.write(end) is None
        await _fails_or_finds_nothing(empty, start)
        assert await read_tables(empty) == before

    empty.runner.run(repeat())


async def _fails_or_finds_nothing(postgres: PostgresUnderTest, work: Work[Any]) -> None:
    """Run a statement as a shortcut, in place of which nothing is done."""

    @unit
    def nothing() -> Steps[str]:
        yield from ()
        return "nothing"

    assert await postgres.database.write(nothing().with_shortcut(work)) == "nothing"


def test_a_member_that_starts_during_the_end_of_a_run_undoes_it(empty: PostgresUnderTest) -> None:
    """The end waits for the row of its session, and finds a newer run in it then."""

    async def race() -> None:
        await empty.database.write(_many_runs())
        async with empty.connected() as other, empty.connected() as watch:
            transaction = other.transaction()
            await transaction.start()
            await other.execute(
                "UPDATE sessions SET run_count = run_count + 1 WHERE session_id = 's2'"
            )
            ending = asyncio.create_task(
                empty.database.write(
                    runs.finish(an_end("r4")).with_shortcut(plain_runs.end(an_end("r4"), None))
                )
            )
            await _wait_for_lock(watch)
            await transaction.commit()
            assert await ending
        found = await read_tables(empty)
        (session,) = [row for row in found["sessions"] if row["session_id"] == "s2"]
        # Counted once, and the status of the newest run although its number is not the last one.
        assert (session["total_tokens"], session["last_status"]) == (3, "COMPLETED")

    empty.runner.run(race())


# Other tests use the same server: the end of a run that waits has a lock in the schema of this one.
_WAITS = """
SELECT count(*) FROM pg_stat_activity AS other
WHERE wait_event_type = 'Lock' AND query LIKE 'WITH ended%' AND EXISTS (
    SELECT 1 FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
    WHERE pg_locks.pid = other.pid AND relnamespace = current_schema()::regnamespace)
"""


async def _wait_for_lock(watch: asyncpg.Connection[Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await watch.fetchval(_WAITS):
            await asyncio.sleep(0.02)


def test_everyone_starts_a_run_in_any_session(empty: PostgresUnderTest) -> None:
    async def start() -> None:
        await empty.database.write(_prepare(user_id="bob"))
        session, _, run, entry = _start()
        started = await empty.database.write(
            plain_runs.start(session, EVERYONE, run, entry._asdict())
        )
        assert started is not None
        assert started.user_id == "bob"
        (row,) = (await read_tables(empty))["runs"]
        assert (row["user_id"], row["seq"]) == ("bob", 1)

    empty.runner.run(start())
