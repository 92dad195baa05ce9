"""Opening of new files, files of other programs, and unusable files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.config import settings
from agentctl.store.databases import open_database
from agentctl.store.repositories import sessions
from agentctl.store.schema import SCHEMA_VERSION, TABLES, load_migrations
from agentctl.store.sqlite.connection import OpenFile
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE
from tests.kit.process import without_coverage
from tests.kit.rows import a_session_with_run

pytestmark = pytest.mark.usefixtures("without_copies")

ROOT = Path(__file__).parents[2]


def entry(path: Path) -> settings.Database:
    return settings.Database("main", f"sqlite:///{path}")


def refused(path: Path, *, create: bool = True) -> errors.AgentctlError:
    """Return the error for a file, which must not change."""
    before = path.read_bytes() if path.is_file() else None
    beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    with pytest.raises(errors.AgentctlError) as caught:
        open_database(entry(path), create=create)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert (sorted(path.parent.iterdir()) if path.parent.is_dir() else None) == beside
    for text in (caught.value.detail, caught.value.cause, caught.value.hint):
        assert "\n" not in (text or "")
    assert str(path.parent) not in caught.value.detail
    assert str(path) in (caught.value.cause or "") or not path.parent.is_dir()
    return caught.value


def test_a_new_file_has_the_schema_and_private_permissions(path: Path) -> None:
    open_database(entry(path), create=True).close_blocking()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert {name for (name,) in names} >= TABLES
        versions = connection.execute("SELECT version FROM schema_version").fetchall()
        assert versions == [(migration.number,) for migration in load_migrations("sqlite")]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_second_start_keeps_the_file(path: Path) -> None:
    open_database(entry(path), create=True).close_blocking()
    before = path.read_bytes()
    open_database(entry(path), create=True).close_blocking()
    open_database(entry(path), create=False).close_blocking()
    assert path.read_bytes() == before


def test_an_empty_file_gets_the_schema_if_allowed(path: Path) -> None:
    path.touch()
    assert refused(path, create=False).detail == "There is no database yet"
    open_database(entry(path), create=True).close_blocking()


def test_a_missing_database_is_reported_with_a_hint(path: Path) -> None:
    error = refused(path, create=False)
    assert isinstance(error, errors.Unavailable)
    assert error.cause == f"{path} does not exist"
    assert error.hint == "`agentctl serve` creates it"
    assert not path.exists()


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    error = refused(tmp_path / "absent" / "agentctl.db")
    assert error.detail == "The database cannot be created"
    assert str(tmp_path / "absent") in (error.cause or "")


def test_a_directory_is_rejected(path: Path) -> None:
    path.mkdir()
    assert "is a directory" in (refused(path).cause or "")


@pytest.mark.parametrize("content", [b"x", b"# settings\n" * 500, bytes(4096), b"SQLite format 3"])
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database_is_not_changed(
    path: Path, content: bytes, create: bool
) -> None:
    path.write_bytes(content)
    error = refused(path, create=create)
    assert isinstance(error, errors.Unavailable)
    assert error.detail in ("The file is not a database", "The database is damaged")


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("table", ["notes", "schema_version"])
def test_the_database_of_another_program_is_not_changed(
    path: Path, table: str, journal: str
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute(f"CREATE TABLE {table} (version)")
        connection.commit()
    assert refused(path).detail == "The file is not an agentctl database"


@pytest.mark.parametrize(("stored", "age"), [(SCHEMA_VERSION + 1, "newer"), (1, "older")])
def test_another_schema_version_is_rejected_with_both_versions(
    path: Path, stored: int, age: str
) -> None:
    open_database(entry(path), create=True).close_blocking()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM schema_version")
        connection.execute("INSERT INTO schema_version VALUES (?, 0, ?)", (stored, stored))
        connection.commit()
    error = refused(path)
    assert isinstance(error, errors.SchemaMismatch)
    assert age in error.detail
    assert f" has schema {stored}" in (error.cause or "")
    assert str(SCHEMA_VERSION) in (error.cause or "")
    assert age == "newer" or error.hint == "agentctl db migrate"


def test_a_damaged_database_is_reported(path: Path) -> None:
    open_database(entry(path), create=True).close_blocking()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996
    path.write_bytes(content)
    assert refused(path).detail == "The database is damaged"


CREATE = """
import sys
from agentctl.config import settings
from agentctl.store.databases import open_database
open_database(settings.Database("main", f"sqlite:///{sys.argv[1]}"), create=True).close_blocking()
"""


def test_concurrent_processes_create_one_database(path: Path) -> None:
    command = [sys.executable, "-c", CREATE, str(path)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT count(*) FROM schema_version").fetchone()
        assert rows == (len(load_migrations("sqlite")),)


def test_concurrent_threads_create_one_database(path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: open_database(entry(path), create=True), range(8)))
    for database in opened:
        database.close_blocking()


AS_NOBODY = """
import asyncio, os, sys
from agentctl import errors
from agentctl.config import settings
from agentctl.store import databases
from agentctl.store.repositories import sessions
from agentctl.store.sqlite import connection, database as sqlite, schema
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import a_session
import concurrent.futures.thread
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
def told(error):
    print(type(error).__name__, "|", error.detail, "|", error.cause, "|", error.hint)
async def main(path):
    try:
        entry = settings.Database("main", f"sqlite:///{path}")
        database = databases.open_database(entry, create=True)
    except errors.AgentctlError as error:
        return told(error)
    print(await database.read(sessions.get("s1", EVERYONE)))
    try:
        await database.write(sessions.create(a_session()))
    except errors.AgentctlError as error:
        told(error)
    await database.close()
asyncio.run(main(sys.argv[1]))
"""


def as_nobody(path: Path) -> str:
    """Return the error for a user without permissions for the file."""
    command = [sys.executable, "-c", AS_NOBODY, str(path)]
    environment = without_coverage(os.environ)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def closed() -> Iterator[Path]:
    """Return a path in a folder that other users can enter and read, but not write."""
    with tempfile.TemporaryDirectory(prefix="agentctl-store-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "agentctl.db"
        Path(folder).chmod(0o755)


def read_only(folder: Path) -> None:
    if os.geteuid() != 0:
        folder.chmod(0o555)


def test_a_read_only_folder_is_reported(closed: Path) -> None:
    read_only(closed.parent)
    told = as_nobody(closed)
    assert told.startswith(f"Unavailable | The database cannot be created | {closed}: permission")
    assert not closed.exists()


def test_a_file_of_another_user_is_reported(closed: Path) -> None:
    open_database(entry(closed), create=True).close_blocking()
    before = closed.read_bytes()
    closed.chmod(0o000)
    assert as_nobody(closed).startswith(
        f"Unavailable | The database cannot be opened | {closed}: permission"
    )
    closed.chmod(0o600)
    assert closed.read_bytes() == before


def test_a_read_only_file_is_reported_and_not_written(closed: Path) -> None:
    open_database(entry(closed), create=True).close_blocking()
    before = closed.read_bytes()
    closed.chmod(0o444)
    read_only(closed.parent)
    told = as_nobody(closed)
    assert told.startswith("Unavailable | The database "), told
    assert told.count("\n") == 1
    assert closed.read_bytes() == before


def test_second_database_of_a_process_keeps_the_locks_of_the_first(path: Path) -> None:
    first = open_database(entry(path), create=True)
    try:
        first.write_blocking(a_session_with_run())
        open_database(entry(path), create=False).close_blocking()

        # The last program that closes a file deletes its log; this one sees the lock of the first.
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM runs')"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=PATIENCE)

        assert path.with_name(f"{path.name}-wal").exists()
    finally:
        first.close_blocking()


async def test_write_before_a_close_outlives_the_connection_of_the_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of the loop is closed first, and SQLite removes the log with a last connection."""
    is_closing = threading.Event()
    connect = OpenFile.connect

    def connect_late(file: OpenFile, open_connection: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert is_closing.wait(PATIENCE)
        return connect(file, open_connection)

    database = open_database(entry(path), create=True)
    monkeypatch.setattr(OpenFile, "connect", connect_late)
    assert await database.read(sessions.get("s1", EVERYONE)) is None
    written = asyncio.ensure_future(database.write(a_session_with_run()))
    await asyncio.sleep(0)
    waits = database._shut_down()
    is_closing.set()
    for wait in waits:
        wait()
    await written
