"""Databases that several processes share, workers in them, and runs that they own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import orjson

from agentctl.config.settings import Database as Entry
from agentctl.config.settings import Settings
from agentctl.runs import event_format
from agentctl.runtime.events import Content, RunEvent
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import events, runs, sessions, workers
from agentctl.store.repositories.runs import RunRow
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.visibility import EVERYONE
from tests.process import base_environment
from tests.store.made import a_run, a_session

__all__ = ["Rig", "WorkerProcess", "a_live_run", "identity", "said", "stored", "the_workers"]

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """A process that is enlisted; see `tests.runs.enlisted`."""

    def __init__(self, process: subprocess.Popen[str], system: Path) -> None:
        self.process = process
        self._system = system
        self.worker_id = self.hear()

    def hear(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return line.strip()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def kill(self, *, reap: bool = True) -> None:
        """kill -9; without `reap` its parent has not asked about its end when this returns."""
        self.process.kill()
        if reap:
            self.process.wait()

    def stop(self) -> None:
        """SIGSTOP, but not in the middle of a write: then nobody could write at all."""
        connection = apsw.Connection(str(self._system))
        deadline = time.monotonic() + 10
        while True:
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            try:
                connection.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                assert time.monotonic() < deadline
                self.go_on()
                os.waitid(os.P_PID, self.process.pid, os.WCONTINUED)
            else:
                connection.close()
                return

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Rig:
    """A folder with two databases, `main` and `second`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(
            databases=tuple(
                Entry(name, f"sqlite:///{folder / name}.db") for name in ("main", "second")
            )
        )
        self._processes: list[WorkerProcess] = []

    @property
    def locks(self) -> list[str]:
        """Names of the lock files that are there."""
        return sorted(path.name for path in self.folder.glob("main.db.workers/*"))

    @contextlib.asynccontextmanager
    async def open(self, *, create: bool = True, all: bool = True) -> AsyncIterator[Databases]:
        """Both databases, as one process has them."""
        databases = Databases(self.settings, create=create)
        try:
            if all:
                await databases.open_all()
            yield databases
        finally:
            await databases.close()

    def process(self, *, heartbeat_seconds: float = 0.05) -> WorkerProcess:
        """Start a process that enlists; the databases must be there."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.enlisted", str(self.folder), str(heartbeat_seconds)],
            cwd=ROOT,
            env=base_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        worker = WorkerProcess(process, self.folder / "main.db")
        self._processes.append(worker)
        return worker

    def end_processes(self) -> None:
        for worker in self._processes:
            worker.end()


async def a_live_run(
    database: Database, owner: str | None, run_id: str = "r1", session_id: str = "s1", **given: Any
) -> RunRow:
    """A run that a worker has begun, in a session of its kind."""
    await database.write(_begun(owner, run_id, session_id, given))
    return await stored(database, run_id)


@unit
def _begun(owner: str | None, run_id: str, session_id: str, given: dict[str, Any]) -> Steps[None]:
    run = a_run(run_id, session_id, owner=owner, **given)
    if (yield from sessions.get(session_id, EVERYONE)) is None:
        yield from sessions.create(a_session(session_id, session_type=run.component_type))
    yield from runs.create(run)
    if owner is not None:
        yield from runs.claim(run_id, 1, owner, run.created_at + 1)


async def stored(database: Database, run_id: str = "r1") -> RunRow:
    """The run as the database has it."""
    row = await database.read(runs.get(run_id, EVERYONE))
    assert row is not None
    return row


def identity(run: RunRow, name: str = "Echo") -> event_format.RunIdentity:
    """What the run's events say of it."""
    kind: Any = run.component_type
    return event_format.RunIdentity(
        run.run_id, run.session_id, run.parent_run_id, kind, run.component_id, name
    )


async def said(
    database: Database, run: RunRow, *told: RunEvent | str, root: RunRow | None = None, seq: int = 0
) -> int:
    """Store a batch of events of a run, its start first; returns the number of the next event.

    Args:
        told: events; a text is one of content.
        root: the run whose stream they are in, when it is another one.
        seq: number of the first.
    """
    who = identity(run)
    happened = [Content(event) if isinstance(event, str) else event for event in told]
    lines = [
        event_format.format_started(who),
        *(event_format.format_event(who, event) for event in happened),
    ]
    text = "".join(f"{name} {data.decode()}\n" for name, data in lines)
    last = seq + len(lines) - 1
    stream = (root or run).run_id
    assert await database.write(events.append_batch(stream, 1, seq, last, text))
    return last + 1


async def the_workers(databases: Databases) -> list[WorkerRow]:
    """Every worker that has a row."""
    return await databases.system.read(workers.list_workers())


def loads(text: str | None) -> Any:
    """A JSON column."""
    assert text is not None
    return orjson.loads(text)


async def beaten(databases: Databases, worker_id: str, beats: int = 1) -> None:
    """Return after a worker has been seen to beat that often."""
    seen: list[int] = []
    async with asyncio.timeout(10):
        while len(set(seen)) <= beats:
            row = await databases.system.read(workers.get(worker_id))
            assert row is not None
            seen.append(row.beat)
            await asyncio.sleep(0.005)
