"""The end of an upgrade, after which programs of earlier releases do not work with a database.

From then on rows may have forms that only the programs of this schema read, see
`schema.FINISH_UPGRADE`. Only the local command line uses this module (docs/decisions/0125).
"""

from __future__ import annotations

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.schema import TEXT_ROWS_SINCE
from agentctl.store.versions import exclude_earlier_programs


async def check_servers(settings: Settings) -> None:
    """Check that no server of an earlier release is at work.

    Raises:
        Conflict: there is one.
        Unavailable, SchemaMismatch: the system database cannot be used.
    """
    databases = Databases(settings, create=False)
    try:
        deaths = await WorkerMonitor(databases).check_all()
        rows = await databases.system.read(workers.list_workers())
    finally:
        await databases.close()
    old = [
        f"pid {row.pid} on {row.host}"
        for row in rows
        if (row.schema_version or 0) < TEXT_ROWS_SINCE and deaths.get(row.worker_id) is None
    ]
    if old:
        raise errors.Conflict(
            "Servers of an earlier version work with the database",
            cause=", ".join(old),
            hint="replace them by servers of this version, then repeat the command",
        )


async def finish_upgrade(settings: Settings, database_id: str) -> None:
    """Exclude programs of earlier releases from a migrated database; see `check_servers`."""
    databases = Databases(settings, create=False)
    try:
        await databases[database_id].write(exclude_earlier_programs())
    finally:
        await databases.close()
