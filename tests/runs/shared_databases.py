"""Databases that several worker processes share, with runs that they own."""

from __future__ import annotations

import asyncio
import contextlib
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
from agentctl.interface.requests import StreamEvent
from agentctl.records.runs import RunRow
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import RunIdentity, encode_events
from agentctl.runtime.transcript.events import Content, RunEvent
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import events, run_reads, runs, sessions, workers
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.process import ROOT, base_environment, start_module
from tests.kit.process_states import is_stopped
from tests.kit.rows import a_run, a_session

__all__ = [
    "SharedDatabases",
    "WorkerProcess",
    "build_identity",
    "create_live_run",
    "list_workers",
    "read_run",
    "store_events",
]


class WorkerProcess:
    """A registered worker process; see `tests.runs.worker_process`."""

    def __init__(self, process: subprocess.Popen[str], system: Path) -> None:
        self.process = process
        self._system = system
        self.worker_id = self.read_line()

    def read_line(self) -> str:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return line.strip()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Send SIGSTOP, but not during a write: then no process could write at all."""
        pid = self.process.pid
        connection = apsw.Connection(str(self._system))
        deadline = time.monotonic() + PATIENCE
        while True:
            self.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: is_stopped(pid))
            try:
                connection.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                assert time.monotonic() < deadline
                self.resume()
                wait_for(lambda: not is_stopped(pid))
            else:
                connection.close()
                return

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class SharedDatabases:
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
    def lock_names(self) -> list[str]:
        """Names of the existing lock files."""
        return sorted(path.name for path in self.folder.glob("main.db.workers/*"))

    @contextlib.asynccontextmanager
    async def open(self, *, create: bool = True, all: bool = True) -> AsyncIterator[Databases]:
        """Open both databases, as one process does."""
        databases = Databases(self.settings, create=create)
        try:
            if all:
                await databases.open_all()
            yield databases
        finally:
            await databases.close()

    def start_worker(
        self, *, heartbeat_seconds: float = 0.05, is_child: bool = False
    ) -> WorkerProcess:
        """Start a process that registers as a worker; the databases must exist.

        Args:
            is_child: the process is a child of this one, and remains as a zombie when it has ended.
        """
        module = "tests.runs.worker_process"
        words = (str(self.folder), str(heartbeat_seconds))
        streams: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
        }
        if is_child:
            command = [sys.executable, "-m", module, *words]
            process = subprocess.Popen(command, cwd=ROOT, env=base_environment(), **streams)
        else:
            process = start_module(module, *words, env=base_environment(), **streams)
        worker = WorkerProcess(process, self.folder / "main.db")
        self._processes.append(worker)
        return worker

    def end_processes(self) -> None:
        for worker in self._processes:
            worker.end()


async def create_live_run(
    database: Database, owner: str | None, run_id: str = "r1", session_id: str = "s1", **given: Any
) -> RunRow:
    """Create a run that a worker has claimed, in a session of its kind."""
    await database.write(_begun(owner, run_id, session_id, given))
    return await read_run(database, run_id)


@unit
def _begun(owner: str | None, run_id: str, session_id: str, given: dict[str, Any]) -> Steps[None]:
    run = a_run(run_id, session_id, owner=owner, **given)
    if (yield from sessions.get(session_id, EVERYONE)) is None:
        yield from sessions.create(a_session(session_id, session_type=run.spec.component_type))
    yield from runs.create(run)
    if owner is not None:
        yield from runs.claim(run_id, 1, owner, run.created_at + 1)


async def read_run(database: Database, run_id: str = "r1") -> RunRow:
    """Return the stored row of a run."""
    row = await database.read(run_reads.get(run_id, EVERYONE))
    assert row is not None
    return row


def build_identity(run: RunRow, name: str = "Echo") -> RunIdentity:
    """Return the identity fields of the events of a run."""
    kind: Any = run.component_type
    return RunIdentity(run.run_id, run.session_id, run.parent_run_id, kind, run.component_id, name)


async def store_events(
    database: Database,
    run: RunRow,
    *contents: RunEvent | str,
    root: RunRow | None = None,
    seq: int = 0,
) -> int:
    """Store a batch of events of a run, with its start event; return the next event number.

    Args:
        contents: the events; a text is a content event.
        root: the run whose stream has the events, if it is another one.
        seq: number of the first event.
    """
    named = build_identity(run)
    happened = [Content(event) if isinstance(event, str) else event for event in contents]
    published = [
        (*event_rows.format_started(named), None),
        *(event_rows.format_event(named, event) for event in happened),
    ]
    portion = [StreamEvent(seq, name, data) for seq, (name, data, _) in enumerate(published, seq)]
    last = portion[-1].seq
    stream = (root or run).run_id
    text = encode_events(stream, portion, [piece for _, _, piece in published])
    assert await database.write(events.append_batch(stream, 1, seq, last, text))
    return last + 1


async def list_workers(databases: Databases) -> list[WorkerRow]:
    """Return every worker that has a row."""
    return await databases.system.read(workers.list_workers())


def loads(text: str | None) -> Any:
    """Parse a JSON column."""
    assert text is not None
    return orjson.loads(text)


async def wait_for_heartbeats(databases: Databases, worker_id: str, beats: int = 1) -> None:
    """Return after a number of heartbeats of a worker."""
    seen: list[int] = []
    async with asyncio.timeout(PATIENCE):
        while len(set(seen)) <= beats:
            row = await databases.system.read(workers.get(worker_id))
            assert row is not None
            seen.append(row.beat)
            await asyncio.sleep(0.005)
