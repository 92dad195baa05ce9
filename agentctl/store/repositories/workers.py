"""The processes that run work: one row each, in the system database (design.md "Runs")."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from agentctl.store.database import Sql, Statement, Steps, single_unit

__all__ = ["WorkerRow", "get", "list_workers", "record_heartbeat", "register", "remove"]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process that runs work. Times are microseconds.

    Attributes:
        boot_id: which kernel, and which pids, `pid` belongs to.
        process_start: clock ticks from the boot to the start of the process; 0 where unknown.
        beat: when it last said that it lives, by its own clock.
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

_REGISTER = Sql(
    f"INSERT INTO workers ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"
)

_HEARTBEAT = Sql("UPDATE workers SET beat = :now WHERE worker_id = :worker_id RETURNING worker_id")

# A row for each process: few, so they are read in whatever order they have.
_LIST = Sql(f"SELECT {_COLUMNS} FROM workers")

_GET = Sql(f"SELECT {_COLUMNS} FROM workers WHERE worker_id = :worker_id")

_REMOVE = Sql("DELETE FROM workers WHERE worker_id = :worker_id RETURNING worker_id")


@single_unit
def register(row: WorkerRow) -> Steps[None]:
    """Store a new worker; its id must be new."""
    yield Statement(_REGISTER, asdict(row))


@single_unit
def record_heartbeat(worker_id: str, now: int) -> Steps[bool]:
    """Say that a worker lives; False when its row is gone: others have buried it."""
    return bool((yield Statement(_HEARTBEAT, {"worker_id": worker_id, "now": now})))


@single_unit
def list_workers() -> Steps[list[WorkerRow]]:
    """Every worker that has a row, the longest-serving first."""
    rows = yield Statement(_LIST)
    return sorted(
        (WorkerRow(*row) for row in rows), key=lambda row: (row.started_at, row.worker_id)
    )


@single_unit
def get(worker_id: str) -> Steps[WorkerRow | None]:
    """The worker, or None when it has no row."""
    rows = yield Statement(_GET, {"worker_id": worker_id})
    return WorkerRow(*rows[0]) if rows else None


@single_unit
def remove(worker_id: str) -> Steps[bool]:
    """Remove a worker's row; False when it is gone already. Its runs are left as they are."""
    return bool((yield Statement(_REMOVE, {"worker_id": worker_id})))
