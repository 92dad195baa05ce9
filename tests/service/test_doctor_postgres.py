"""`agentctl doctor` on PostgreSQL databases: every fault has a remedy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from agentctl.admin.doctor.checks import list_steps, run_step
from agentctl.admin.doctor.databases import (
    _check_clock,
    _check_durability,
    _check_encoding,
    _check_encryption,
    _check_version,
    _check_writable,
    check_database,
)
from agentctl.config.settings import Database, Server, Settings
from agentctl.records.system import Finding
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.postgres.inspect import ServerFacts
from tests.kit.postgres import drop_schema

PASSWORD = "AGENTCTL_TEST_CHECKUP_PASSWORD"


@asynccontextmanager
async def created_database(url: str) -> AsyncIterator[Database]:
    """Create a database with the tables of agentctl."""
    entry = Database("main", url, search_path=f"checkup_{uuid4().hex}")
    database = PostgresDatabase(entry, create=True)
    await database.check()
    await database.close()
    try:
        yield entry
    finally:
        await drop_schema(entry)


@asynccontextmanager
async def as_user(entry: Database, *statements: str, limit: int = -1) -> AsyncIterator[Database]:
    """Yield the database as a new user, created with the statements for `{it}`."""
    it = f"checkup_{uuid4().hex}"
    admin = await asyncpg.connect(entry.url)
    create = f"CREATE ROLE {{it}} LOGIN PASSWORD 'right' CONNECTION LIMIT {limit}"
    usage = f"GRANT USAGE ON SCHEMA {entry.search_path} TO {{it}}"
    try:
        for statement in (create, usage, *statements):
            await admin.execute(statement.format(it=it, schema=entry.search_path))
        parts = urlsplit(entry.url)
        place = f"{it}@{parts.netloc.rpartition('@')[2]}"
        url = urlunsplit(parts._replace(netloc=place))
        yield replace(entry, url=url, password_env=PASSWORD)
    finally:
        await admin.execute(f"DROP OWNED BY {it}; DROP ROLE {it}")
        await admin.close()


ALL_RIGHTS = "GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {it}"


async def run_checks(entry: Database, processes: int = 1) -> list[Finding]:
    return [each async for each in check_database(entry, processes)]


def texts_of(findings: list[Finding], verdict: str) -> str:
    found = [f"{each.what} -> {each.remedy}" for each in findings if each.verdict == verdict]
    return "\n".join(found)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "right")


async def test_valid_postgres_database_is_ok(postgres_url: str) -> None:
    async with created_database(postgres_url) as entry:
        found = texts_of(await run_checks(entry), "ok")
        assert "it responds, as PostgreSQL " in found
        assert "its clock agrees with the clock of this machine" in found
        assert "it is writable" in found
        assert f"a server may open {entry.pool_size + 1} connections" in found


async def test_missing_privileges_have_a_remedy(postgres_url: str) -> None:
    only_reads = "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {it}"
    reads = "ALTER ROLE {it} SET default_transaction_read_only = on"
    async with created_database(postgres_url) as entry:
        async with as_user(entry) as nobody:
            assert "GRANT the privileges in" in texts_of(await run_checks(nobody), "wrong")
        async with as_user(entry, only_reads) as reader:
            found = texts_of(await run_checks(reader), "wrong")
            assert "sessions: INSERT, UPDATE, DELETE" in found
            assert "GRANT SELECT, INSERT, UPDATE, DELETE" in found
        async with as_user(entry, ALL_RIGHTS, reads) as bound:
            assert "read-only (default_transaction_read_only)" in texts_of(
                await run_checks(bound), "wrong"
            )


async def test_too_few_connections_are_reported(postgres_url: str) -> None:
    async with created_database(postgres_url) as entry, as_user(entry, ALL_RIGHTS, limit=8) as few:
        assert "may open 5 connections, and 8 are free" in texts_of(await run_checks(few), "ok")
        found = texts_of(await run_checks(few, processes=2), "wrong")
        assert "may open 10 connections, but the limit is 8 -> lower pool_size" in found


async def test_missing_database_is_reported_once(postgres_url: str) -> None:
    """A database without tables is a note, and its runs are not checked."""
    empty = Database("main", postgres_url, search_path=f"none_{uuid4().hex}")
    away = Database("main", "postgresql://me@127.0.0.1:1/none")
    for entry, verdict, text in (
        (empty, "note", "has no tables yet -> agentctl db migrate"),
        (away, "wrong", "does not answer"),
    ):
        settings = Settings(databases=(entry,), server=Server(workers=2))
        findings = [each for step in list_steps(settings) for each in await run_step(step)]
        about = [each for each in findings if each.check in ("database main", "runs")]
        assert len(about) == 1
        assert text in texts_of(about, verdict)


GOOD = ServerFacts(
    "17.2", 170_002, 0, False, False, True, True, True, 97, 0, None, True, "UTF8", []
)

FAULTS = (
    (_check_version, GOOD._replace(version="12.9", number=120_009), "12.9 is older"),
    (
        _check_clock,
        GOOD._replace(clock_ahead=-400_000_000),
        "behind the clock of this machine -> synchronize both: timedatectl",
    ),
    (
        _check_clock,
        GOOD._replace(clock_ahead=301_000_000),
        "ahead of the clock of this machine -> synchronize both: timedatectl",
    ),
    (_check_writable, GOOD._replace(standby=True, read_only=True), "read-only standby"),
    (_check_encoding, GOOD._replace(encoding="LATIN1"), "its encoding is LATIN1"),
    (_check_durability, GOOD._replace(fsync=False), "ALTER SYSTEM SET fsync = on"),
    (_check_durability, GOOD._replace(full_pages=False), "ALTER SYSTEM SET full_page_writes = on"),
    (
        _check_durability,
        GOOD._replace(synchronous=False),
        "ALTER SYSTEM SET synchronous_commit = on",
    ),
)


def test_each_server_fault_is_wrong() -> None:
    for check, facts, text in FAULTS:
        assert text in texts_of(list(check("database main", facts)), "wrong")
        assert texts_of(list(check("database main", GOOD)), "ok")
    assert "its clock is" in texts_of(
        list(_check_clock("", GOOD._replace(clock_ahead=3_000_000))), "note"
    )


@pytest.mark.parametrize(
    ("url", "encrypted", "tls", "verdict"),
    [
        ("postgresql://me@db.example.org/one", False, "prefer", "wrong"),
        ("postgresql://me@db.example.org/one", True, "require", "note"),
        ("postgresql://me@db.example.org/one", True, "verify-full", "ok"),
        ("postgresql://me@127.0.0.1/one", False, "prefer", ""),
        ("postgresql:///one?host=/run/postgresql&user=me", False, "prefer", ""),
        ("postgresql:///one?host=db.example.org&user=me", False, "prefer", "wrong"),
    ],
)
def test_unencrypted_connection_is_reported(
    url: str, encrypted: bool, tls: str, verdict: str
) -> None:
    entry = Database("main", url, tls=tls)  # type: ignore[arg-type]
    found = list(_check_encryption("database main", GOOD._replace(encrypted=encrypted), entry))
    assert [each.verdict for each in found] == ([verdict] if verdict else [])
    if verdict in ("wrong", "note"):
        assert found[0].remedy == 'tls = "verify-full" in [[databases]] main'
