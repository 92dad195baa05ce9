"""`agentctl db copy`, whose process is killed at moments of both phases."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agentctl import errors
from agentctl.admin.databases import count_unindexed
from agentctl.config.settings import Database
from agentctl.store.copying import copier, postgres, sqlite
from agentctl.store.copying.postgres import PostgresTarget
from agentctl.store.copying.sqlite import SqliteSource
from agentctl.store.database import Database as OpenDatabase
from agentctl.store.databases import open_database
from agentctl.store.repositories import runs, sessions
from tests.commands import run_command
from tests.postgres import drop_schema
from tests.process import base_environment
from tests.runs.components import LONG
from tests.store.rows import a_run, a_session, an_end
from tests.store.sums import add_up

KILLS = 100 if LONG else 2
"""Moments of each of the two phases."""

SESSIONS = 20

KILLED = -signal.SIGKILL

CONFIG = """
[search]
enabled = true
"""


class Move:
    """A database that is copied, and the place to which it is copied.

    Args:
        folder: gets the configuration.
        source, target: databases with different ids.
    """

    def __init__(self, folder: Path, source: Database, target: Database) -> None:
        self.source = source
        self.target = target
        self._folder = folder
        self._config = folder / f"{source.id}-to-{target.id}.toml"
        self._config.write_text(CONFIG + "".join(map(format_entry, (source, target))))

    def copy(self, *options: str, killed_at: int = 0) -> tuple[int, int]:
        """Run `agentctl db copy` in a process that is killed before one of its steps.

        Args:
            killed_at: the number of the step; 0 to let it end. A step is a call of a method of one
                of the two databases.

        Returns:
            The exit code, and the number of steps.
        """
        steps = self._folder / "steps"
        child = os.fork()
        if child == 0:
            counted = count_steps(killed_at)
            try:
                code = self._run("copy", "--from", self.source.id, "--to", self.target.id, *options)
                steps.write_text(str(counted()))
                os._exit(code)
            finally:
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, int(steps.read_text()) if code == 0 else killed_at

    def check(self, entry: Database) -> None:
        """Check every page, index and reference of one of the databases."""
        assert self._run("check", "--db", entry.id) == 0, (self._folder / "output").read_text()

    def _run(self, *words: str) -> int:
        ended = run_command(
            "db",
            *words,
            "--config",
            str(self._config),
            environment=base_environment(),
            folder=self._folder,
        )
        (self._folder / "output").write_text(ended.stdout + ended.stderr)
        return ended.code

    def kill_both_phases(self, first: int, second: int) -> tuple[int, int]:
        """Copy with a kill in each phase, and finish; the source is used after each kill.

        Args:
            first, second: the steps; 0 for no kill.

        Returns:
            The numbers of steps of the two phases.
        """
        before = asyncio.run(add_up(self.source))
        code, first_steps = self.copy(killed_at=first)
        assert code == (KILLED if first else 0), first
        assert asyncio.run(add_up(self.source)) == before
        self.check(self.source)
        assert asyncio.run(change_unless_moved(self.source, "phase-1"))
        assert self.copy()[0] == 0
        assert asyncio.run(change_unless_moved(self.source, "phase-2"))
        code, second_steps = self.copy("--finish", killed_at=second)
        assert code == (KILLED if second else 0), second
        if asyncio.run(change_unless_moved(self.source, "phase-3")):
            self.check(self.source)
        assert self.copy("--finish")[0] == 0
        self.check(self.target)
        moved = asyncio.run(add_up(self.target))
        assert moved == asyncio.run(add_up(self.source)), (first, second)
        assert asyncio.run(count_texts(self.target)) == (0, moved["sessions"].rows)
        return first_steps, second_steps


def count_steps(killed_at: int) -> Callable[[], int]:
    """Count the steps of this process, and kill it before one. Return the count so far."""
    steps = 0

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*args, **options)

        return call

    for kind in (SqliteSource, PostgresTarget):
        for name, method in list(vars(kind).items()):
            if callable(method) and not name.startswith("_"):
                setattr(kind, name, counting(method))
    return lambda: steps


def format_entry(entry: Database) -> str:
    text = f'[[databases]]\nid = "{entry.id}"\nurl = "{entry.url}"\n'
    return text + (f'search_path = "{entry.search_path}"\n' if entry.search_path else "")


@contextlib.asynccontextmanager
async def opened(entry: Database, *, create: bool = False) -> AsyncIterator[OpenDatabase]:
    database = open_database(entry, create=create)
    try:
        await database.check()
        yield database
    finally:
        await database.close()


async def fill(entry: Database) -> None:
    async with opened(entry, create=True) as database:
        for number in range(SESSIONS):
            await add_session(database, f"s{number:03}")


async def add_session(database: OpenDatabase, name: str) -> None:
    await database.write(sessions.create(a_session(name, session_name=f"Ünïcödé ☃ {name}")))
    await database.write(runs.create(a_run(f"r-{name}", name)))
    await database.write(runs.claim(f"r-{name}", 1, "w1", 1))
    await database.write(runs.finish(an_end(f"r-{name}", content=name * 9)))


async def change_unless_moved(entry: Database, name: str) -> bool:
    """Change a database as a server would. Return False if it has moved."""
    try:
        async with opened(entry) as database:
            # Early and late in the order of the keys.
            await add_session(database, f"a-{name}")
            await add_session(database, f"z-{name}")
            await database.write(sessions.delete(f"s{int(name[-1]):03}"))
            return True
    except errors.DatabaseMoved:
        return False


async def count_texts(entry: Database) -> tuple[int, int]:
    """Return the number of sessions with texts that are not indexed, and of all."""
    async with opened(entry) as database:
        return await count_unindexed(database, "words")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copier, postgres, sqlite):
        for name, value in (("BATCH_ROWS", 7), ("KEYS", 3)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


@pytest.fixture
def schemas(postgres_url: str) -> Iterator[list[Database]]:
    """PostgreSQL databases of the test, one for each schema."""
    name = f"kills_{uuid4().hex}"
    entries = [Database("new", postgres_url, search_path=f"{name}_{n}") for n in range(KILLS + 2)]
    yield entries
    for entry in entries:
        asyncio.run(drop_schema(entry))


@pytest.mark.usefixtures("small_batches")
def test_copy_survives_kills_in_both_phases(schemas: list[Database], tmp_path: Path) -> None:
    def move(number: int, first: int, second: int) -> tuple[int, int]:
        folder = tmp_path / str(number)
        folder.mkdir()
        main = Database("main", f"sqlite:///{folder / 'main.db'}")
        asyncio.run(fill(main))
        return Move(folder, main, schemas[number]).kill_both_phases(first, second)

    # A copy that was killed before its first step leaves the fewest changes to the second phase.
    first, _ = move(KILLS, 0, 0)
    _, second = move(KILLS + 1, 1, 0)
    assert min(first, second) > KILLS, (first, second)
    for number in range(KILLS):
        move(number, 1 + number * first // KILLS, 1 + number * second // KILLS)
