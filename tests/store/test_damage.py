"""Files with lost content: they are rejected and never replaced."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from agentctl import errors
from agentctl.config import settings
from agentctl.store.database import Steps, unit
from agentctl.store.databases import open_database, open_sqlite
from agentctl.store.migrating import migrate, read_version
from agentctl.store.repositories import sessions
from agentctl.store.sqlite.connection import get_lock_folder, get_wal_path
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE
from tests.kit.process import without_coverage
from tests.kit.rows import a_session

pytestmark = pytest.mark.usefixtures("without_copies")

SESSIONS = [f"s{n:03}" for n in range(300)]


@unit
def all_sessions() -> Steps[None]:
    for name in SESSIONS:
        yield from sessions.create(a_session(name, metadata=name * 100))


def filled(path: Path) -> None:
    database = open_sqlite("main", path, create=True)
    database.write_blocking(all_sessions())
    database.close_blocking()


def left_behind(path: Path) -> None:
    """Create a file and its log as a killed process leaves them."""
    child = os.fork()
    if child == 0:
        try:
            database = open_sqlite("main", path, create=True)
            database.write_blocking(sessions.create(a_session("s1")))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert get_wal_path(path).stat().st_size


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Assert that no file of a folder changes."""

    def content() -> dict[str, bytes | None]:
        return {
            each.name: each.read_bytes() if each.is_file() else None for each in folder.iterdir()
        }

    before = content()
    yield
    assert content() == before


def refused(path: Path) -> errors.AgentctlError:
    """Return the error with which every way to open the file fails."""
    entry = settings.Database("main", f"sqlite:///{path}")
    ways: list[Callable[[], object]] = [
        lambda: open_database(entry, create=True),
        lambda: asyncio.run(migrate(entry, lambda _: None)),
        lambda: asyncio.run(read_version(entry)),
    ]
    caught = []
    for way in ways:
        with untouched(path.parent), pytest.raises(errors.Unavailable) as failure:
            way()
        caught.append(failure.value)
    assert len({each.detail for each in caught}) == 1
    return caught[0]


@pytest.mark.parametrize("pages", [1, 8])
def test_a_truncated_file_is_rejected(path: Path, pages: int) -> None:
    filled(path)
    os.truncate(path, pages * 4096)
    error = refused(path)
    assert error.detail == "The database is damaged"
    assert f"{path} has {pages * 4096} of its " in (error.cause or "")
    assert "backup" in (error.hint or "")


def test_an_emptied_database_is_rejected(path: Path) -> None:
    filled(path)
    os.truncate(path, 0)
    error = refused(path)
    assert error.detail == "The database has lost its content"
    folder = get_lock_folder(path)
    assert error.hint == f"restore it from a backup; for an empty database: rm -r {folder}"
    get_lock_folder(path).rmdir()
    open_sqlite("main", path, create=True).close_blocking()


def test_a_file_with_a_removed_log_is_rejected(path: Path) -> None:
    left_behind(path)
    log = get_wal_path(path)
    log.unlink()
    error = refused(path)
    assert error.detail == "The database has lost its log"
    assert f"{log} is missing" in (error.cause or "")
    index = path.with_name(f"{path.name}-shm")
    assert (error.hint or "").endswith(f"continue without the lost changes: rm {index}")
    index.unlink()
    database = open_sqlite("main", path, create=False)
    assert database.read_blocking(sessions.get("s1", EVERYONE)) is None
    database.close_blocking()


def test_a_log_without_its_file_is_kept(path: Path) -> None:
    left_behind(path)
    kept = path.with_name("kept.db")
    path.rename(kept)
    assert refused(path).detail == "The database file is missing, but its log exists"
    kept.rename(path)
    database = open_sqlite("main", path, create=False)
    assert database.read_blocking(sessions.get("s1", EVERYONE)) is not None
    database.close_blocking()


@pytest.mark.parametrize("junk", ["zeroed", "random"])
def test_a_damaged_page_affects_only_its_rows(path: Path, junk: str) -> None:
    filled(path)
    page = 4096 * _page_of(path, SESSIONS[200])
    content = bytearray(path.read_bytes())
    content[page : page + 4096] = (
        bytes(4096) if junk == "zeroed" else random.Random(5).randbytes(4096)
    )
    path.write_bytes(content)
    database = open_sqlite("main", path, create=True)
    with pytest.raises(errors.Unavailable, match="The database is damaged") as caught:
        database.read_blocking(sessions.get(SESSIONS[200], EVERYONE))
    assert "backup" in (caught.value.hint or "")
    assert database.read_blocking(sessions.get(SESSIONS[0], EVERYONE)) is not None
    database.close_blocking()


def _page_of(path: Path, session_id: str) -> int:
    """Return the number of the page, from 0, with the row of a session."""
    needle = f"{session_id * 100}".encode()
    return path.read_bytes().index(needle) // 4096


def test_a_link_is_treated_like_its_file(path: Path) -> None:
    """The log and the locks are next to the real file."""
    left_behind(path)
    link = path.with_name("link.db")
    link.symlink_to(path)
    database = open_sqlite("main", link, create=False)
    assert database.read_blocking(sessions.get("s1", EVERYONE)) is not None
    database.close_blocking()
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    connection = apsw.Connection(str(copy))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_write_to_a_failing_disk_is_not_acknowledged(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.failing_disk", str(path)],
        cwd=Path(__file__).parents[2],
        env=without_coverage(os.environ),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    kept = [name for name, told in said["results"].items() if told == "kept"]
    assert kept == ["s0", "s3", "s4", "s7"]
    assert set(said["results"].values()) == {"kept", "The database cannot be read or written"}
    assert said["there"] == kept
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
