"""Workers: the processes that execute runs, one row each, in the system database."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, single_unit


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker. Times are microseconds UTC.

    Attributes:
        boot_id: identifies the boot of the machine that `pid` is valid for.
        process_start: clock ticks from the boot to the start of the process; 0 if unknown.
        beat: the time of the last heartbeat, by the clock of `Database.clock`.
    """

    worker_id: str
    host: str
    boot_id: str
    pid: int
    process_start: int
    beat: int
    started_at: int


_NAMES = tuple(field.name for field in fields(WorkerRow))
_COLUMNS = ", ".join(_NAMES)

_REGISTER = build_insert("workers", _NAMES)

_HEARTBEAT = Sql("UPDATE workers SET beat = :now WHERE worker_id = :worker_id RETURNING worker_id")

# One row for each process: a small table, which is sorted after the read.
_LIST = Sql(f"SELECT {_COLUMNS} FROM workers")

_GET = Sql(f"SELECT {_COLUMNS} FROM workers WHERE worker_id = :worker_id")

_REMOVE = Sql("DELETE FROM workers WHERE worker_id = :worker_id RETURNING worker_id")


def register(row: WorkerRow) -> Work[None]:
    """Store a new worker. Its id must not exist."""
    return _REGISTER.execute(**asdict(row))


def record_heartbeat(worker_id: str, now: int) -> Work[bool]:
    """Store a heartbeat.

    Return False if the row is gone: another process has removed the worker.
    """
    return _HEARTBEAT.has_rows(worker_id=worker_id, now=now).as_repeatable()


@single_unit
def list_workers() -> Steps[list[WorkerRow]]:
    """Return all workers, the oldest first."""
    rows = yield Statement(_LIST)
    return sorted(
        (WorkerRow(*row) for row in rows), key=lambda row: (row.started_at, row.worker_id)
    )


def get(worker_id: str) -> Work[WorkerRow | None]:
    """Return the worker, or None if it has no row."""
    return _GET.first(WorkerRow, worker_id=worker_id)


def remove(worker_id: str) -> Work[bool]:
    """Delete the row of a worker. Return False if it is gone already. Its runs are not changed."""
    return _REMOVE.has_rows(worker_id=worker_id)
