"""The death of a service or of a worker in this process, as another process sees it."""

from __future__ import annotations

from typing import Any

from agentctl.runs.workers.worker import Worker
from agentctl.service.service import Service
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.sqlite.database import SqliteDatabase

__all__ = ["kill_service", "kill_worker"]


def kill_service(service: Service) -> None:
    """Let a service die as with its process: it stores nothing any more, and its lock is free.

    What it has accepted for SQLite is stored first, as if the death came a moment later; PostgreSQL
    loses what is not committed. Its tasks are still there, and the caller cancels them.
    """
    databases: list[Any] = list(service.hosting.databases.get_open().values())
    for database in databases:
        if isinstance(database, PostgresDatabase):
            _cut_connections(database)

    kill_worker(service._worker)

    for database in databases:
        if isinstance(database, SqliteDatabase):
            database.close_blocking()


def kill_worker(worker: Worker) -> None:
    """Let a worker die as with its process: it has no heartbeat, and its lock is free."""
    worker._ended.set()
    if worker._thread is not None:
        worker._thread.join()
    worker._thread = None

    # The kernel would close the file and free the lock; the file stays.
    if worker._lock is not None:
        worker._lock.release()
    worker._lock = None


def _cut_connections(database: PostgresDatabase) -> None:
    database._closed = True
    pool: Any = database._pool
    for connection in [*pool._busy, *pool._idle]:
        connection.terminate()
    database._thread_connection.close()
