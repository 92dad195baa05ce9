"""The workers of a deployment, with their state, for people."""

from __future__ import annotations

from agentctl.light_dataclass import dataclass
from agentctl.records.times import now
from agentctl.runs.workers.liveness import WorkerDeath
from agentctl.service.hosting import Hosting
from agentctl.store.repositories import run_reads, workers

_DEATHS: dict[WorkerDeath | None, str | None] = {
    None: None,
    WorkerDeath.EXITED: "its process has ended",
    WorkerDeath.NO_HEARTBEAT: "it has no heartbeat",
}


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A process that executes runs.

    Attributes:
        uptime_seconds, silent_seconds: since its start, and since its last heartbeat, by the clocks
            of both machines.
        death: the evidence that it is dead; None: it may live.
        is_at_work: it has live runs, or ended runs whose work continues.
    """

    worker_id: str
    host: str
    pid: int
    uptime_seconds: float
    silent_seconds: float
    death: str | None
    is_at_work: bool


async def survey_workers(hosting: Hosting) -> list[WorkerState]:
    """Return the workers that have a row, the oldest first.

    Only the local command line uses this: access to the database is the authority
    (docs/contract.md "Local mode").
    """
    databases = hosting.databases
    deaths = await hosting.monitor.check_all()
    owners: set[str | None] = set()
    for database_id in databases:
        owners.update(await databases[database_id].read(run_reads.list_owners_at_work()))
    at = now()
    return [
        WorkerState(
            worker_id=row.worker_id,
            host=row.host,
            pid=row.pid,
            uptime_seconds=max(0, at - row.started_at) / 1_000_000,
            silent_seconds=max(0, at - row.beat) / 1_000_000,
            death=_DEATHS[deaths[row.worker_id]],
            is_at_work=row.worker_id in owners,
        )
        for row in await databases.system.read(workers.list_workers())
        if row.worker_id in deaths
    ]
