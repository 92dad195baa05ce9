"""Check the jobs of the servers, as far as the databases show them.

No database has the times at which jobs ran. The lease shows a sweep of the last seconds, and work
that is left although it was due shows a job that is late. Backups and webhooks have own checks.
"""

from __future__ import annotations

from agentctl.admin.doctor.finding import Finding, note, ok, wrong
from agentctl.records.times import DAY, now
from agentctl.runs.jobs.cleanup import EVENT_RETENTION
from agentctl.runs.life.claims import QUEUE_SECONDS
from agentctl.service.hosting import Hosting
from agentctl.store.repositories import approvals, events, queue, workers

_CHECK = "jobs"

LATE_SECONDS = 300
"""Time after which work that was due is late. Rows may be deleted a day later, because a process
that doubts its clock waits for a day."""


async def check_jobs(hosting: Hosting) -> Finding:
    """Look for work that is late.

    Raises:
        Unavailable: a database does not answer.
    """
    at, databases = now(), [hosting.databases[name] for name in hosting.databases]
    before = at - LATE_SECONDS * 1_000_000
    queued = before - QUEUE_SECONDS * 1_000_000
    signs = {
        "approvals have expired": approvals.list_due(before),
        "runs have waited in the queue for too long": queue.list_overdue(queued),
        "events are kept for too long": events.has_older(before - DAY - EVENT_RETENTION),
    }
    late = [
        text
        for text, sign in signs.items()
        if any([await database.read(sign, size="large") for database in databases])
    ]
    sweeper = await hosting.databases.system.read(workers.get_sweeper(at))
    what = f"worker {sweeper} sweeps" if sweeper else "no server sweeps now"
    if not late:
        return ok(_CHECK, f"{what}, and no work is late")
    find = wrong if sweeper else note
    remedy = "the log of a server names the reason: agentctl.runs" if sweeper else "agentctl serve"
    return find(_CHECK, f"{what}, but {', '.join(late)}", remedy)
