"""Migrations: atomic, by one process, never backwards."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import apsw
import asyncpg
import pytest

from agentctl import errors
from agentctl.admin.databases import check_integrity, plan_migration, read_database_status
from agentctl.admin.doctor.databases import check_database as examine
from agentctl.config import settings
from agentctl.store.databases import open_database
from agentctl.store.migrating import migrate, read_version
from agentctl.store.postgres.schema import find_schema_differences
from agentctl.store.schema import SCHEMA_VERSION, Migration, StoredVersion, load_migrations
from agentctl.store.sqlite import schema
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.process import without_coverage
from tests.store.old_databases import old_file, old_schema

pytestmark = pytest.mark.usefixtures("without_copies")

ROOT = Path(__file__).parents[2]
CURRENT = StoredVersion(SCHEMA_VERSION, 15)
LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
NEWER = [migration.name for migration in load_migrations("sqlite")[1:]]


def entry(path: Path) -> settings.Database:
    return settings.Database("main", f"sqlite:///{path}")


def killed(source: Path, copy: Path, step: int) -> list[dict[str, list[object]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.killed_migration", str(source), str(copy), str(step)],
        cwd=ROOT,
        env=without_coverage(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("before", [1, None])
def test_a_killed_migration_leaves_the_schema_before_or_after_a_step(
    tmp_path: Path, before: int | None
) -> None:
    source = tmp_path / "old.db"
    if before is not None:
        old_file(source)
    step = 1 if LONG else 4
    told = killed(source, tmp_path / "copy.db", step)
    statements = sum(len(each.statements()) for each in load_migrations("sqlite")[before or 0 :])
    assert len(told) * step > statements
    assert [each["status"] for each in told] == [9] * (len(told) - 1) + [0]
    versions = {each.number for each in load_migrations("sqlite")}
    for each in told:
        version, wrong = each["left"]
        # A new file gets all migrations in one transaction.
        assert version in ({None, SCHEMA_VERSION} if before is None else versions)
        assert wrong == []
        assert each["then"] == [SCHEMA_VERSION, []]


def test_one_of_several_processes_migrates_a_file(path: Path) -> None:
    old_file(path)
    applied: list[str] = []

    async def race() -> None:
        each = (migrate(entry(path), lambda step: applied.append(step.name)) for _ in range(6))
        await asyncio.gather(*each)

    asyncio.run(race())
    assert sorted(applied) == NEWER
    assert asyncio.run(read_version(entry(path))) == CURRENT


def test_a_migration_waits_for_writers_and_can_be_cancelled(path: Path) -> None:
    old_file(path)

    async def wait() -> None:
        with closing(apsw.Connection(str(path))) as holder:
            holder.execute("BEGIN IMMEDIATE")
            given_up = asyncio.create_task(migrate(entry(path), lambda _: None))
            waits = asyncio.create_task(migrate(entry(path), lambda _: None))
            await asyncio.wait([given_up, waits], timeout=0.3)
            given_up.cancel()
            await asyncio.wait([given_up], timeout=PATIENCE)
            assert given_up.cancelled()
            assert not waits.done()
            holder.execute("COMMIT")
            await asyncio.wait_for(waits, PATIENCE)

    asyncio.run(wait())
    assert asyncio.run(read_version(entry(path))) == CURRENT


def test_a_newer_or_foreign_database_is_not_changed(path: Path) -> None:
    open_database(entry(path), create=True).close_blocking()  # type: ignore[attr-defined]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO schema_version VALUES (99, 0, 99)")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(errors.SchemaMismatch, match="newer"):
        asyncio.run(migrate(entry(path), lambda _: None))
    assert path.read_bytes() == before
    other = path.with_name("other.db")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.commit()
    before = other.read_bytes()
    with pytest.raises(errors.Unavailable, match="not an agentctl database"):
        asyncio.run(migrate(entry(other), lambda _: None))
    assert other.read_bytes() == before


def test_a_migrated_file_equals_a_new_one_and_keeps_its_rows(path: Path) -> None:
    old_file(path)
    asyncio.run(migrate(entry(path), lambda _: None))
    connection = apsw.Connection(str(path))
    assert list(schema.compare_schema(schema.read_schema(connection), SCHEMA_VERSION)) == []
    assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(1,)]
    connection.execute("CREATE INDEX mine ON runs (input); DROP INDEX runs_parent")
    found = schema.compare_schema(schema.read_schema(connection), SCHEMA_VERSION)
    assert list(found) == [
        ("index runs_parent is missing", False),
        ("index mine is not part of the schema", True),
    ]
    connection.close()


def test_statements_of_a_migration_have_no_comments() -> None:
    text = "-- a;\nCREATE INDEX a\n  ON b (c); /* ; */ CREATE FUNCTION f() AS $$ x; y; $$;\n"
    migration = Migration(1, "0001_a", f"{text}UPDATE b SET c = ';';")
    assert migration.statements() == [
        "CREATE INDEX a ON b (c)",
        "CREATE FUNCTION f() AS $$ x; y; $$",
        "UPDATE b SET c = ';'",
    ]
    assert migration.summary() == [
        "CREATE INDEX a ON b",
        "CREATE FUNCTION f",
        "UPDATE b SET c = ';'",
    ]


@asynccontextmanager
async def old_postgres(url: str) -> AsyncIterator[tuple[settings.Database, asyncpg.Connection]]:  # type: ignore[type-arg]
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(url)
    try:
        await old_schema(connection, name)
        yield settings.Database("main", url, search_path=name), connection
    finally:
        await connection.execute(f"DROP SCHEMA {name} CASCADE")
        await connection.close()


def test_a_schema_of_a_development_version_is_not_migrated(postgres_url: str) -> None:
    async def main() -> None:
        async with old_postgres(postgres_url) as (entry, connection):
            await connection.execute(load_migrations("postgres")[14].text)
            await connection.execute("INSERT INTO schema_version VALUES (27, 0, 15)")
            with pytest.raises(errors.SchemaMismatch, match="development version") as caught:
                await migrate(entry, lambda _: None)
            assert "has schema 27; the migration of releases leads from" in str(caught.value.cause)
            assert await find_schema_differences(connection, 1) == []

    asyncio.run(main())


def test_one_of_several_processes_migrates_postgres(postgres_url: str) -> None:
    async def race() -> None:
        applied: list[str] = []
        async with old_postgres(postgres_url) as (entry, connection):
            each = (migrate(entry, lambda step: applied.append(step.name)) for _ in range(3))
            await asyncio.gather(*each)
            built = [name for name in applied if name.startswith("index ")]
            assert "index runs_by_finished" in built
            assert len(set(built)) == len(built)
            removed = [name for name in applied if name.startswith("removal of index ")]
            assert "removal of index sessions_created" in removed
            assert applied[-len(removed) :] == removed
            assert sorted(set(applied) - {*built, *removed}) == NEWER
            assert await find_schema_differences(connection, SCHEMA_VERSION) == []
            assert await connection.fetchval("SELECT count(*) FROM runs") == 1
            await connection.execute("DROP INDEX runs_parent")
            assert await find_schema_differences(connection, SCHEMA_VERSION) == [
                "index runs_parent is missing"
            ]

    asyncio.run(race())


_MIGRATOR = """
SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
WHERE relname = 'sessions' AND relnamespace = current_schema()::regnamespace AND NOT granted
"""


def test_a_killed_postgres_migration_changes_nothing(postgres_url: str) -> None:
    async def kill() -> None:
        async with old_postgres(postgres_url) as (entry, connection):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("LOCK TABLE sessions IN ROW EXCLUSIVE MODE")
            migrating = asyncio.create_task(migrate(entry, lambda _: None))
            async with asyncio.timeout(PATIENCE):
                while not await connection.fetch(_MIGRATOR):
                    await asyncio.sleep(0.02)
            await asyncio.wait([migrating], timeout=PATIENCE)
            assert isinstance(migrating.exception(), errors.Unavailable)
            await transaction.rollback()
            assert await read_version(entry) == StoredVersion(1, 1)
            assert await find_schema_differences(connection, 1) == []
            await migrate(entry, lambda _: None)
            assert await read_version(entry) == CURRENT

    asyncio.run(kill())


ANOTHER_RUN = """
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, status, background,
                  attempt, created_at, late_result, input)
VALUES ('r2', 's1', 2, 'agent', 'echo', 'PENDING', 0, 0, 1, 0, '')
"""

_BUILDER = """
SELECT pid FROM pg_locks WHERE NOT granted AND pid IN (
    SELECT pid FROM pg_stat_progress_create_index
    WHERE relid = to_regclass('runs') AND command = 'CREATE INDEX CONCURRENTLY')
"""


_WAITS_FOR_WRITER = """
SELECT waiting.pid FROM pg_stat_activity AS waiting, pg_locks AS held
WHERE held.relation = to_regclass('runs') AND held.mode = 'RowExclusiveLock'
  AND held.pid = ANY (pg_blocking_pids(waiting.pid))
"""


@asynccontextmanager
async def a_writer(entry: settings.Database) -> AsyncIterator[asyncpg.transaction.Transaction]:
    """Open a transaction for whose end each build of an index of runs waits."""
    writer = await asyncpg.connect(entry.url)
    try:
        await writer.execute(f"SET search_path = {entry.search_path}")
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("UPDATE runs SET seq = 1")
        yield transaction
    finally:
        writer.terminate()


async def wait_for_builder(watch: asyncpg.Connection) -> None:  # type: ignore[type-arg]
    """Wait until a build of an index of runs waits for the end of a transaction."""
    await wait_until(lambda: watch.fetch(_BUILDER))


async def kill_builder(entry: settings.Database, connection: asyncpg.Connection) -> None:  # type: ignore[type-arg]
    """Begin a migration, write a run while it builds an index, and kill its connection."""
    migrating = asyncio.create_task(migrate(entry, lambda _: None))
    await wait_for_builder(connection)
    await connection.execute(f"SET lock_timeout = '20s'; {ANOTHER_RUN}")
    (row,) = await connection.fetch(_BUILDER)
    await connection.execute("SELECT pg_terminate_backend($1::int)", row[0])
    await asyncio.wait([migrating], timeout=PATIENCE)
    assert isinstance(migrating.exception(), errors.Unavailable)


OTHER_INDEXES = """
DROP INDEX runs_by_finished, runs_by_created;
CREATE INDEX runs_type_created ON runs (component_type, created_at, run_id)
"""
"""Let two indexes be missing that the schema has, and one exist that it has no longer."""


async def test_an_index_is_built_beside_writers_and_after_a_kill(postgres_url: str) -> None:
    async with old_postgres(postgres_url) as (entry, connection):
        await migrate(entry, lambda _: None)
        await connection.execute(OTHER_INDEXES)
        async with a_writer(entry) as transaction:
            await kill_builder(entry, connection)
            left = (await read_database_status(entry)).pending
            assert left == [
                "index runs_by_created",
                "index runs_by_finished",
                "removal of index runs_type_created",
            ]
            differences = await find_schema_differences(connection, SCHEMA_VERSION)
            assert "index runs_by_created is disabled" in differences
            findings = [finding.what async for finding in examine(entry)]
            slow = "its migration is not complete, lists or writes are slower: "
            assert slow + ", ".join(left) in findings
            await open_database(entry, create=False).check()

            # Two processes migrate at once: one builds, the other one waits for it.
            both = [asyncio.create_task(migrate(entry, lambda _: None)) for _ in range(2)]
            await wait_until(lambda: connection.fetch(_WAITS_FOR_WRITER))
            await transaction.rollback()
            await asyncio.wait_for(asyncio.gather(*both), PATIENCE)
            assert await find_schema_differences(connection, SCHEMA_VERSION) == []
            assert (await read_database_status(entry)).pending == []


MIGRATE = """
import asyncio, sys
from agentctl.config import settings
from agentctl.store.migrating import migrate
asyncio.run(migrate(settings.Database("main", sys.argv[1], search_path=sys.argv[2]), print))
"""


def test_indexes_are_completed_after_a_killed_client(postgres_url: str) -> None:
    async def main() -> None:
        async with old_postgres(postgres_url) as (entry, connection):
            await migrate(entry, lambda _: None)
            await connection.execute("DROP INDEX runs_by_created, runs_by_finished")
            async with a_writer(entry) as transaction:
                client = subprocess.Popen(
                    [sys.executable, "-c", MIGRATE, entry.url, str(entry.search_path)],
                    env=without_coverage(os.environ),
                    cwd=ROOT,
                )
                try:
                    await wait_for_builder(connection)
                finally:
                    client.kill()
                    client.wait()
                # Its process of PostgreSQL goes on until its statement ends, and has the lock.
                again = asyncio.create_task(migrate(entry, lambda _: None))
                await asyncio.wait([again], timeout=0.3)
                assert not again.done()
                left = (await read_database_status(entry)).pending
                assert left == ["index runs_by_created", "index runs_by_finished"]
                await transaction.rollback()
                await asyncio.wait_for(again, PATIENCE)
            assert await find_schema_differences(connection, SCHEMA_VERSION) == []
            assert (await read_database_status(entry)).pending == []

    asyncio.run(main())


async def list_damage(entry: settings.Database) -> list[str]:
    findings = check_integrity(entry, lambda *_: None)
    return [finding.what async for finding in findings if finding.verdict == "wrong"]


async def test_old_postgres_is_inspected_and_migrated(postgres_url: str) -> None:
    async with old_postgres(postgres_url) as (entry, _):
        status = await read_database_status(entry)
        assert (status.state, status.schema, status.pending) == ("old", 1, NEWER)
        assert (status.sessions, status.runs, status.wal_bytes) == (1, 1, None)
        assert status.failure is not None
        assert status.failure.hint == "agentctl db migrate"
        with pytest.raises(errors.SchemaMismatch):
            await open_database(entry, create=True).check()
        plan = await plan_migration(entry)
        assert [step.name for step in plan.migrations] == NEWER

        await migrate(entry, lambda _: None)
        assert (await read_database_status(entry)).state == "ok"
        assert await list_damage(entry) == []


async def test_damage_of_postgres_is_found_by_the_check_alone(postgres_url: str) -> None:
    async with old_postgres(postgres_url) as (entry, connection):
        await migrate(entry, lambda _: None)
        await connection.execute("UPDATE sessions SET run_count = 2")
        await connection.execute("DROP INDEX runs_by_created")
        assert await list_damage(entry) == [
            "index runs_by_created is missing",
            "run_count differs from the number of runs: 1, for example s1",
        ]

        # The doctor reads no rows. Of its findings, three are expected: two of the settings that
        # the server of the tests has for speed, and the missing index.
        findings = [finding async for finding in examine(entry)]
        expected = ("is off", "its upgrade is not finished", "migration is not complete")
        others = [each for each in findings if not any(text in each.what for text in expected)]
        assert {finding.verdict for finding in others} == {"ok"}


async def test_postgres_that_is_absent_or_away_has_a_state(postgres_url: str) -> None:
    async with old_postgres(postgres_url) as (entry, _):
        absent = replace(entry, search_path=f"{entry.search_path}_absent")
        assert (await read_database_status(absent)).state == "missing"

        away = replace(entry, url="postgresql:///x?host=/nowhere&user=u")
        status = await read_database_status(away)
        assert status.state == "unavailable"
        assert isinstance(status.failure, errors.Unavailable)
