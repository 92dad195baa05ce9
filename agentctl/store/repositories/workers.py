"""Workers: the processes that execute runs, one row each, in the system database.

One worker at a time sweeps for all of them: it has a lease, which it must extend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, single_unit, unit
from agentctl.store.repositories.halts import CHANGE_NUMBER
from agentctl.store.repositories.queue import IS_QUEUED
from agentctl.store.repositories.run_messages import HAS_WAITING
from agentctl.store.states import HAS_CANCEL_REQUEST, IS_LIVE, IS_WAITING

LEASE_SECONDS = 6
"""Seconds after which the lease of a sweeper expires, unless the sweeper extends it."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker. Times are microseconds UTC."""

    worker_id: str
    host: str

    boot_id: str
    """Identifies the boot of the machine that `pid` is valid for."""

    pid: int

    process_start: int
    """Clock ticks from the boot to the start of the process; 0 if unknown."""

    beat: int
    """The time of the last heartbeat, by the clock of `Database.clock`."""

    started_at: int

    schema_version: int | None = None
    """The schema version of its program; None for a release that did not store it."""

    versions: str | None = None
    """The versions of the components of a server, separated by spaces; None for other processes."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A stored heartbeat, and facts for its worker that the same statement read."""

    beat: int
    """Its time by the clock of `Database.clock`."""

    has_requests: bool
    """True if the cancel of a live run of the worker was requested, or a message waits for one."""

    has_waiting_runs: bool
    """True if runs wait for any worker."""

    sweeper: str | None
    """The worker with the lease of the sweep; None if the lease has expired."""

    halts_number: int = 0
    """The number of the last change of any halt (`store.repositories.halts`)."""


class Looks(NamedTuple):
    """The work that a sweep may find in a database; in the system database read with its lease."""

    workers: bool
    """Other workers, or runs without this one as their owner."""

    approvals: bool
    """Pending approvals whose time ends within `LEASE_SECONDS`."""

    waiting: bool
    """Runs that are in the queue, paused, or without an owner and to be cancelled.

    Also messages that wait for a run.
    """

    usage: bool
    """Ended runs that are not in the sums."""


class Survey(NamedTuple):
    """The work that the sweep with a lease may find, and the workers that it judges: one snapshot.

    A worker has its row before its first run, so an owner without a row is dead.
    """

    looks: Looks

    owners: frozenset[str | None]
    """The owners of live runs, and of ended runs whose work continues, in the system database."""

    workers: list[WorkerRow]
    """All workers, the oldest first, without their versions."""


_NAMES = tuple(field.name for field in fields(WorkerRow))
_COLUMNS = ", ".join(_NAMES)

_REGISTER = build_insert("workers", _NAMES)

_LEASE = LEASE_SECONDS * 1_000_000

# A lease that expires later than any new one is older than a clock that was set back.
_IS_VALID = f"expires_at BETWEEN clock(:now) AND clock(:now) + {2 * _LEASE}"

_SWEEPER = f"(SELECT owner FROM leases WHERE name = 'sweep' AND {_IS_VALID})"

# One statement: an idle process asks for nothing else.
_HEARTBEAT = Sql(
    "UPDATE workers SET beat = :now WHERE worker_id = :worker_id RETURNING beat,"
    f" EXISTS (SELECT 1 FROM runs WHERE owner = :worker_id AND {HAS_CANCEL_REQUEST})"
    f" OR {HAS_WAITING},"
    f" EXISTS (SELECT 1 FROM runs WHERE {IS_WAITING}), {_SWEEPER}, {CHANGE_NUMBER}"
)

_LOOKS = (
    "EXISTS (SELECT 1 FROM workers WHERE worker_id <> :worker_id)"
    f" OR EXISTS (SELECT 1 FROM runs WHERE {IS_LIVE}"
    " AND (runs.owner IS NULL OR runs.owner <> :worker_id))"
    " OR EXISTS (SELECT 1 FROM runs WHERE holding IS NOT NULL AND runs.owner <> :worker_id)",
    "EXISTS (SELECT 1 FROM approvals WHERE status = 'pending' AND approvals.expires_at <= :soon)",
    f"EXISTS (SELECT 1 FROM runs WHERE {IS_QUEUED})"
    f" OR EXISTS (SELECT 1 FROM runs WHERE runs.owner IS NULL AND {HAS_CANCEL_REQUEST})"
    " OR EXISTS (SELECT 1 FROM runs WHERE status = 'PAUSED')"
    " OR EXISTS (SELECT 1 FROM run_messages WHERE status = 'waiting')",
    "EXISTS (SELECT 1 FROM usage_ends)",
)

# Ids of workers have no space, hosts no newline.
_OWNERS = (
    "SELECT string_agg(coalesce(owners.owner, ''), ' ') FROM"
    f" (SELECT runs.owner FROM runs WHERE {IS_LIVE}"
    " UNION SELECT runs.owner FROM runs WHERE holding IS NOT NULL) AS owners"
)
_WORKERS = (
    "SELECT string_agg(worker_id || ' ' || boot_id || ' ' || pid || ' ' || process_start || ' '"
    " || beat || ' ' || started_at || ' ' || host, '\n') FROM workers"
)

# One statement: a server sends no other statement for its sweeps, unless it finds work.
_ACQUIRE = Sql(
    f"UPDATE leases SET owner = :worker_id, expires_at = clock(:now) + {_LEASE}"
    f" WHERE name = 'sweep' AND (owner IN (:worker_id, :exited) OR NOT ({_IS_VALID}))"
    f" RETURNING {', '.join(_LOOKS)}, ({_OWNERS}), ({_WORKERS})"
)

_LOOK = Sql(f"SELECT {', '.join(_LOOKS)}")

_RELEASE = Sql(
    "UPDATE leases SET owner = NULL, expires_at = 0 WHERE name = 'sweep' AND owner = :worker_id"
)

_GET_SWEEPER = Sql(f"SELECT {_SWEEPER}")

_VERSIONS = Sql("SELECT versions FROM workers WHERE versions IS NOT NULL")

# One row for each process: a small table, which is sorted after the read.
_LIST = Sql(f"SELECT {_COLUMNS} FROM workers")

_GET = Sql(f"SELECT {_COLUMNS} FROM workers WHERE worker_id = :worker_id")

_REMOVE = Sql("DELETE FROM workers WHERE worker_id = :worker_id RETURNING worker_id")

# Each of the first two is the end of an index; the table of workers is small.
_NEWEST_TIME = Sql(
    "SELECT max(at) FROM (SELECT max(created_at) AS at FROM sessions"
    " UNION ALL SELECT max(created_at) FROM runs"
    " UNION ALL SELECT max(beat) FROM workers) AS times"
)


def register(row: WorkerRow) -> Work[None]:
    """Store a new worker. Its id must not exist."""
    return _REGISTER.execute(**asdict(row))


def record_heartbeat(worker_id: str, now: int) -> Work[Heartbeat | None]:
    """Store a heartbeat.

    Return None if the row is gone: another process has removed the worker.
    """

    def build(
        beat: int, cancels: int, waiting: int, sweeper: str | None, halts_number: int
    ) -> Heartbeat:
        return Heartbeat(beat, bool(cancels), bool(waiting), sweeper, halts_number)

    return _HEARTBEAT.first(build, worker_id=worker_id, now=now).as_repeatable()


def acquire_sweep(worker_id: str, now: int, *, exited: str | None = None) -> Work[Survey | None]:
    """Take or extend the lease of the sweep. Return None if another worker has it.

    Args:
        exited: a worker that is known to be dead; its lease is taken before it expires.
    """
    return _ACQUIRE.first(
        _build_survey, worker_id=worker_id, now=now, exited=exited or worker_id, soon=now + _LEASE
    ).as_repeatable()


def _build_survey(*columns: Any) -> Survey:
    *looks, owners_text, workers_text = columns
    owners = frozenset[str | None]()
    if owners_text is not None:
        owners = frozenset(owner or None for owner in owners_text.split(" "))

    rows = list[WorkerRow]()
    for line in (workers_text or "").splitlines():
        worker_id, boot_id, pid, process_start, beat, started_at, host = line.split(" ", 6)
        rows.append(
            WorkerRow(
                worker_id, host, boot_id, int(pid), int(process_start), int(beat), int(started_at)
            )
        )
    return Survey(Looks(*looks), owners, _sort_by_age(rows))


def _sort_by_age(rows: Iterable[WorkerRow]) -> list[WorkerRow]:
    return sorted(rows, key=lambda row: (row.started_at, row.worker_id))


@single_unit
def look(worker_id: str, now: int) -> Steps[Looks]:
    """Return the work that the sweep of a worker may find in a database."""
    (looks,) = yield Statement(_LOOK, {"worker_id": worker_id, "soon": now + _LEASE})
    return Looks(*looks)


def get_sweeper(now: int) -> Work[str | None]:
    """Return the worker with the lease of the sweep; None if it has expired."""
    return _GET_SWEEPER.value(now=now)


@single_unit
def list_workers() -> Steps[list[WorkerRow]]:
    """Return all workers, the oldest first."""
    rows = yield Statement(_LIST)
    return _sort_by_age(WorkerRow(*row) for row in rows)


@unit
def list_versions() -> Steps[set[str]]:
    """Return the versions of components that servers execute now."""
    rows = yield Statement(_VERSIONS)
    return {version for (versions,) in rows for version in versions.split()}


def get(worker_id: str) -> Work[WorkerRow | None]:
    """Return the worker, or None if it has no row."""
    return _GET.first(WorkerRow, worker_id=worker_id)


@unit
def remove(worker_id: str) -> Steps[bool]:
    """Delete the row of a worker, and release its lease of the sweep. Its runs are not changed.

    Return False if the row is gone already.
    """
    yield Statement(_RELEASE, {"worker_id": worker_id})
    return bool((yield Statement(_REMOVE, {"worker_id": worker_id})))


def get_newest_time() -> Work[int | None]:
    """Return the latest stored creation time or heartbeat, in microseconds UTC."""
    return _NEWEST_TIME.value()
