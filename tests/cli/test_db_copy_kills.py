"""`agentctl db copy`, whose process is killed at moments of its work, and which is repeated."""

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

from agentctl.admin.databases import count_unindexed, read_database_status
from agentctl.config.settings import Database
from agentctl.store.copying import postgres, sqlite
from agentctl.store.copying.postgres import PostgresTarget
from agentctl.store.copying.sqlite import SqliteSource
from agentctl.store.database import Database as OpenDatabase
from agentctl.store.databases import open_database
from agentctl.store.repositories import runs, sessions
from tests.kit.command import run_command
from tests.kit.postgres import drop_schema
from tests.kit.process import base_environment
from tests.kit.rows import a_run, a_session, an_end
from tests.runs.components import LONG
from tests.store.sums import add_up

KILLS = 100 if LONG else 4
"""Moments of a copy, the last three of which are at its end: its last steps close and open."""

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
        self._config = folder / "move.toml"
        self._config.write_text(CONFIG + "".join(map(format_entry, (source, target))))

    def copy(self, killed_at: int = 0) -> tuple[int, int]:
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
                places = ("--from", self.source.id, "--to", self.target.id)
                code = self._run("db", "copy", *places, "--yes")
                steps.write_text(str(counted()))
                os._exit(code)
            finally:
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, int(steps.read_text()) if code == 0 else killed_at

    def check(self, entry: Database) -> None:
        """Check every page, index and reference of one of the databases."""
        code = self._run("doctor", "--db", entry.id)
        assert code == 0, (self._folder / "output").read_text()

    def read_states(self) -> list[str]:
        """Return the states of the source and of the target."""
        entries = (self.source, self.target)
        return [asyncio.run(read_database_status(entry)).state for entry in entries]

    def _run(self, *words: str) -> int:
        ended = run_command(
            *words,
            "--config",
            str(self._config),
            environment=base_environment(),
            folder=self._folder,
        )
        (self._folder / "output").write_text(ended.stdout + ended.stderr)
        return ended.code

    def copy_after_kill(self, killed_at: int) -> tuple[int, list[str]]:
        """Copy with a kill, and copy again.

        Args:
            killed_at: the step; 0 for no kill.

        Returns:
            The number of steps, and the states of the source and the target after the kill.
        """
        before = asyncio.run(add_up(self.source))
        code, steps = self.copy(killed_at)
        assert code == (KILLED if killed_at else 0), (self._folder / "output").read_text()

        states = self.read_states()
        assert asyncio.run(add_up(self.source)) == before
        if states[0] == "ok":
            self.check(self.source)
        if killed_at:
            assert self.copy()[0] == 0, (self._folder / "output").read_text()

        assert self.read_states() == ["moved", "ok"]
        self.check(self.target)
        assert asyncio.run(add_up(self.target)) == before, killed_at
        assert asyncio.run(count_texts(self.target)) == (0, SESSIONS)
        return steps, states


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
            name = f"s{number:03}"
            await database.write(sessions.create(a_session(name, session_name=f"Ünïcödé ☃ {name}")))
            await database.write(runs.create(a_run(f"r-{name}", name)))
            await database.write(runs.claim(f"r-{name}", 1, "w1", 1))
            await database.write(runs.finish(an_end(f"r-{name}", content=name * 9)))


async def count_texts(entry: Database) -> tuple[int, int]:
    """Return the number of sessions with texts that are not indexed, and of all."""
    async with opened(entry) as database:
        return await count_unindexed(database, "words")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres, sqlite):
        monkeypatch.setattr(module, "BATCH_ROWS", 7)


@pytest.fixture
def schemas(postgres_url: str) -> Iterator[list[Database]]:
    """PostgreSQL databases of the test, one for each schema."""
    name = f"kills_{uuid4().hex}"
    entries = [Database("new", postgres_url, search_path=f"{name}_{n}") for n in range(KILLS + 1)]
    yield entries
    for entry in entries:
        asyncio.run(drop_schema(entry))


@pytest.mark.usefixtures("small_batches")
def test_copy_is_repeated_after_a_kill_at_any_moment(
    schemas: list[Database], tmp_path: Path
) -> None:
    def move(number: int, killed_at: int) -> tuple[int, list[str]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        main = Database("main", f"sqlite:///{folder / 'main.db'}")
        asyncio.run(fill(main))
        return Move(folder, main, schemas[number]).copy_after_kill(killed_at)

    steps, _ = move(KILLS, 0)
    # The last steps: close the source, commit that, begin a transaction, open the target.
    last = [steps - 1, steps - 2, steps - 3]
    spread = KILLS - len(last)
    moments = [1 + number * (steps - 4) // spread for number in range(spread)]
    found = [move(number, moment)[1] for number, moment in enumerate([*moments, *last])]
    allowed = (["ok", "missing"], ["ok", "ok"], ["ok", "incomplete"], ["moved", "incomplete"])
    assert [states for states in found if states not in allowed] == []
    assert ["ok", "incomplete"] in found
    assert ["moved", "incomplete"] in found
