"""Removes what is kept for a time only: events of runs that ended, keys of requests, lock files,
and rows of the audit.

Looks for dead workers, ends what they left, and buries them, in every process that runs work.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from agentctl import errors
from agentctl.records.times import now
from agentctl.runs import process
from agentctl.runs.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.recovery import recover_runs
from agentctl.runs.worker import Worker
from agentctl.store.database import Database, Work
from agentctl.store.databases import Databases
from agentctl.store.repositories import audit, events, idempotency, runs, workers

__all__ = [
    "EVENT_RETENTION",
    "SWEEP_SECONDS",
    "delete_expired",
    "sweep_dead_workers",
    "watch_workers",
]

EVENT_RETENTION = 24 * 60 * 60 * 1_000_000
"""How long the events of a run are kept after its end, in microseconds (design.md "Events")."""

DAY_MICROSECONDS = 24 * 60 * 60 * 1_000_000
"""Microseconds."""

MAXIMUM_UNITS = 20
"""Units of work of one kind that one round does: what is more is done by later rounds."""


async def delete_expired(databases: Databases, *, audit_days: int | None = None) -> None:
    """One round over the open databases. The audit is kept for `audit_days`; None: for ever.

    Raises:
        Unavailable: a database does not answer.
    """
    for database in databases.opened().values():
        await _delete_older(database, events, now() - EVENT_RETENTION)
        await _delete_older(database, idempotency, now() - idempotency.KEY_LIFETIME)
    if audit_days is not None:
        await _delete_older(databases.system, audit, now() - audit_days * DAY_MICROSECONDS)
    rows = await databases.system.read(workers.list_workers())
    process.remove_stale_locks(databases.system.lock_folder, {row.worker_id for row in rows})


class _ExpiringRepository(Protocol):
    """A repository of what is kept for a time."""

    def has_older(self, before: int, /) -> Work[bool]: ...

    def delete_older(self, before: int, /) -> Work[int]: ...


async def _delete_older(database: Database, kept: _ExpiringRepository, before: int) -> None:
    """Look first, which keeps no writer waiting, then delete unit by unit, so that other writers
    have their turn in between.
    """
    for _ in range(MAXIMUM_UNITS):
        if not await database.read(kept.has_older(before), large=True):
            return
        await database.write(kept.delete_older(before))


SWEEP_SECONDS = 2.0
"""Time between two sweeps (design.md "Workers")."""

CLEANUP_SECONDS = 60.0
"""Time between two rounds of housekeeping, and more after a long one: see `TIDY_SHARE`."""

CLEANUP_SHARE = 0.01
"""How much of its time a process spends on housekeeping at most."""

_log = logging.getLogger("agentctl.runs")


async def watch_workers(
    databases: Databases,
    observer: WorkerMonitor,
    worker: Worker,
    *,
    sweep_seconds: float = SWEEP_SECONDS,
    tidy_seconds: float = CLEANUP_SECONDS,
    audit_days: int | None = None,
) -> None:
    """Sweep and keep house until cancelled. A failure is logged, and tried again later.

    Rows of the audit are kept for `audit_days`; None: for ever.
    """
    clock = asyncio.get_running_loop().time
    tidy_at = clock() + tidy_seconds
    while True:
        await asyncio.sleep(sweep_seconds)
        if not databases.opened():
            continue
        try:
            await sweep_dead_workers(databases, observer, worker.id)
            if clock() >= tidy_at:
                tidy_at = clock() + tidy_seconds
                took = await _run_cleanup(databases, audit_days)
                tidy_at = clock() + max(tidy_seconds, took / CLEANUP_SHARE)
        except errors.AgentctlError as error:
            observer.complaints.make("dead workers could not be looked for: %s", error.detail)
        except Exception as error:
            observer.complaints.make("the sweep for dead workers failed", cause=error)


async def _run_cleanup(databases: Databases, audit_days: int | None) -> float:
    """One round of housekeeping; returns how many seconds it took."""
    began = asyncio.get_running_loop().time()
    await delete_expired(databases, audit_days=audit_days)
    return asyncio.get_running_loop().time() - began


async def sweep_dead_workers(databases: Databases, observer: WorkerMonitor, own: str) -> list[str]:
    """End the runs of every dead worker, then bury it.

    Args:
        databases: a dead worker with a row is looked for in all of them; runs of workers without
            one in those that are open.
        own: the worker of this process, which is not judged.

    Returns:
        Ids of the runs that this sweep has ended.

    Raises:
        Unavailable: the system database does not answer. Another one that does not is logged.
    """
    # The owners first: a worker has its row before its first run, so who has none now is dead.
    owners = await _read_live_owners(databases, observer)
    judged = await observer.check_all()
    ended: list[str] = []
    for database_id, live in owners.items():
        for owner in live - judged.keys() - {own}:
            ended += (
                await _recover_database(databases, observer, database_id, owner, WorkerDeath.EXITED)
                or []
            )
    for owner, death in judged.items():
        if death is not None and owner != own:
            ended += await _remove_dead_worker(databases, observer, owner, death)
    return ended


async def _read_live_owners(
    databases: Databases, observer: WorkerMonitor
) -> dict[str, set[str | None]]:
    owners: dict[str, set[str | None]] = {}
    for database_id, database in databases.opened().items():
        try:
            owners[database_id] = set(await database.read(runs.list_live_owners()))
        except errors.AgentctlError as error:
            observer.complaints.make(
                "runs of database %s could not be read: %s", database_id, error.detail
            )
    return owners


async def _remove_dead_worker(
    databases: Databases, observer: WorkerMonitor, owner: str, death: WorkerDeath
) -> list[str]:
    """Recover a dead worker's runs everywhere; its row stays until every database was reached."""
    found = [
        await _recover_database(databases, observer, database_id, owner, death)
        for database_id in databases
    ]
    ended = [run_id for run_ids in found if run_ids is not None for run_id in run_ids]
    if None not in found and await databases.system.write(workers.remove(owner)):
        process.remove_lock(databases.system.lock_folder, owner)
        _log.warning("worker %s is %s; %d of its runs were ended", owner, death.value, len(ended))
    return ended


async def _recover_database(
    databases: Databases,
    observer: WorkerMonitor,
    database_id: str,
    owner: str | None,
    death: WorkerDeath,
) -> list[str] | None:
    """Ids of the runs that were ended in a database; None when not all of it could be done."""
    try:
        return await recover_runs(
            databases[database_id], owner, silent=death is WorkerDeath.NO_HEARTBEAT
        )
    except errors.AgentctlError as error:
        detail = error.detail
        observer.complaints.make("database %s could not be recovered: %s", database_id, detail)
    except Exception as error:
        observer.complaints.make(
            "a run of database %s could not be ended", database_id, cause=error
        )
    return None
