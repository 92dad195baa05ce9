"""The sweep for dead workers: it ends their runs, and removes their rows and lock files."""

from __future__ import annotations

import logging

from agentctl import errors
from agentctl.runs.workers import liveness
from agentctl.runs.workers.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.workers.recovery import recover_runs
from agentctl.store.databases import Databases
from agentctl.store.repositories import run_reads, workers
from agentctl.store.repositories.workers import Survey

SWEEP_SECONDS = 2.0
"""Time between two sweeps."""

_log = logging.getLogger("agentctl.runs")


async def sweep_dead_workers(
    databases: Databases, monitor: WorkerMonitor, own_id: str, survey: Survey | None = None
) -> list[str]:
    """End the runs of every dead worker, then remove the worker.

    Args:
        databases: the runs of a dead worker with a row are searched in all databases; those of a
            worker without a row in the open databases.
        own_id: the worker of this process, which is never judged.
        survey: the owners and workers of the system database, if no other one is open; by default
            they are read.

    Returns:
        Ids of the runs that this sweep has ended.

    Raises:
        Unavailable: the system database does not answer. A failure of another one is logged.
    """
    if survey is not None:
        owners = {databases.system.id: set(survey.owners)}
        deaths = await monitor.judge_all(survey.workers)
    else:
        # Read the owners first: a worker has its row before its first run, so an owner that has no
        # row afterwards is dead.
        owners = await _read_owners(databases, monitor)
        deaths = await monitor.check_all()

    ended_run_ids: list[str] = []

    for database_id, database_owners in owners.items():
        for owner in database_owners - deaths.keys() - {own_id}:
            run_ids = await _recover_database(
                databases, monitor, database_id, owner, WorkerDeath.EXITED
            )
            ended_run_ids += run_ids or []

    for owner, death in deaths.items():
        if death is not None and owner != own_id:
            ended_run_ids += await _remove_dead_worker(databases, monitor, owner, death)
    return ended_run_ids


async def _read_owners(databases: Databases, monitor: WorkerMonitor) -> dict[str, set[str | None]]:
    """Return the owners of runs at work in each open database that answers."""
    owners: dict[str, set[str | None]] = {}
    for database_id, database in databases.get_open().items():
        try:
            owners[database_id] = set(await database.read(run_reads.list_owners_at_work()))
        except errors.AgentctlError as error:
            monitor.rate_limited_log.log(
                "runs of database %s could not be read: %s", database_id, error.detail
            )
    return owners


async def _remove_dead_worker(
    databases: Databases, monitor: WorkerMonitor, owner: str, death: WorkerDeath
) -> list[str]:
    """End the runs of a dead worker in all databases, and remove it if that succeeds in each."""
    ended_run_ids: list[str] = []
    is_complete = True
    for database_id in databases:
        run_ids = await _recover_database(databases, monitor, database_id, owner, death)
        if run_ids is None:
            # The row stays, so that the next sweep finds the worker again.
            is_complete = False
        else:
            ended_run_ids += run_ids

    # Another sweep may have removed it first.
    if is_complete and await databases.system.write(workers.remove(owner)):
        liveness.remove_lock(databases.system.lock_folder, owner)
        _log.warning(
            "worker %s is dead (%s); %d of its runs were ended",
            owner,
            death.value,
            len(ended_run_ids),
        )
    return ended_run_ids


async def _recover_database(
    databases: Databases,
    monitor: WorkerMonitor,
    database_id: str,
    owner: str | None,
    death: WorkerDeath,
) -> list[str] | None:
    """End the runs of a dead worker in one database; return their ids, or None after a failure."""
    try:
        return await recover_runs(
            databases[database_id],
            owner,
            may_still_run=death is WorkerDeath.NO_HEARTBEAT,
            on_ended=monitor.on_lost_run,
        )
    except errors.AgentctlError as error:
        monitor.rate_limited_log.log(
            "database %s could not be recovered: %s", database_id, error.detail
        )
    except Exception as error:
        monitor.rate_limited_log.log(
            "a run of database %s could not be ended", database_id, cause=error
        )
    return None
