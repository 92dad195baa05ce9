"""The death of a service or of a worker in this process, as another process sees it."""

from __future__ import annotations

import contextlib
from queue import Empty
from typing import Any

from agentctl.runs.workers.worker import Worker
from agentctl.service.service import Service
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.sqlite.database import SqliteDatabase

__all__ = ["kill_service", "kill_worker"]


def kill_service(service: Service, *, with_queued_writes: bool = True) -> None:
    """Let a service die as with its process: it stores nothing any more, and its lock is free.

    PostgreSQL loses what is not committed. Its tasks are still there, and the caller cancels them.

    Args:
        with_queued_writes: SQLite stores first what it has accepted, as if the death came a moment
            later; otherwise the current write is done or lost, and later ones are lost.
    """
    databases: list[Any] = list(service.hosting.databases.get_open().values())
    for database in databases:
        if isinstance(database, PostgresDatabase):
            _cut_connections(database)

    _stop_heartbeat(service._worker)

    for database in databases:
        if isinstance(database, SqliteDatabase):
            if not with_queued_writes:
                _drop_queued_writes(database)
            database.close_blocking()

    # After the last write: others end its runs once the lock is free.
    _free_lock(service._worker)


def kill_worker(worker: Worker) -> None:
    """Let a worker die as with its process: it has no heartbeat, and its lock is free."""
    _stop_heartbeat(worker)
    _free_lock(worker)


def _stop_heartbeat(worker: Worker) -> None:
    worker._ended.set()
    if worker._thread is not None:
        worker._thread.join()
    worker._thread = None


def _free_lock(worker: Worker) -> None:
    # The kernel would close the file and free the lock; the file stays.
    if worker._lock is not None:
        worker._lock.release()
    worker._lock = None


def _drop_queued_writes(database: SqliteDatabase) -> None:
    writer = database._writer
    if writer is None:
        return
    with contextlib.suppress(Empty):
        while (unit := writer._queue.get_nowait()) is not None:
            unit.future.cancel()


def _cut_connections(database: PostgresDatabase) -> None:
    database._closed = True
    pool: Any = database._pool
    for connection in [*pool._busy, *pool._idle]:
        connection.terminate()
    database._thread_connection.close()
