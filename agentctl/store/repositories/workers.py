"""The processes that run work: one row each, in the system database (design.md "Runs")."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from agentctl.store.database import Sql, Statement, Steps, unit

__all__ = ["WorkerRow", "beat", "bury", "enlist", "get", "listed"]


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

_ENLIST = Sql(
    f"INSERT INTO workers ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"
)

_BEAT = Sql("UPDATE workers SET beat = :now WHERE worker_id = :worker_id RETURNING worker_id")

# A row for each process: few, so they are read in whatever order they have.
_LISTED = Sql(f"SELECT {_COLUMNS} FROM workers")

_GET = Sql(f"SELECT {_COLUMNS} FROM workers WHERE worker_id = :worker_id")

_BURY = Sql("DELETE FROM workers WHERE worker_id = :worker_id RETURNING worker_id")


@unit
def enlist(row: WorkerRow) -> Steps[None]:
    """Store a new worker; its id must be new."""
    yield Statement(_ENLIST, asdict(row))


@unit
def beat(worker_id: str, now: int) -> Steps[bool]:
    """Say that a worker lives; False when its row is gone: others have buried it."""
    return bool((yield Statement(_BEAT, {"worker_id": worker_id, "now": now})))


@unit
def listed() -> Steps[list[WorkerRow]]:
    """Every worker that has a row, the longest-serving first."""
    rows = yield Statement(_LISTED)
    return sorted(
        (WorkerRow(*row) for row in rows), key=lambda row: (row.started_at, row.worker_id)
    )


@unit
def get(worker_id: str) -> Steps[WorkerRow | None]:
    """The worker, or None when it has no row."""
    rows = yield Statement(_GET, {"worker_id": worker_id})
    return WorkerRow(*rows[0]) if rows else None


@unit
def bury(worker_id: str) -> Steps[bool]:
    """Remove a worker's row; False when it is gone already. Its runs are left as they are."""
    return bool((yield Statement(_BURY, {"worker_id": worker_id})))
