"""The operations on the deployment: readiness, workers, and findings about databases and disks.

`agentctl doctor` makes the same checks of a database: schema and free space. They read files and
may block: a server calls them in a thread.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from agentctl import __version__
from agentctl.config.databases import display_url, is_sqlite_url, sqlite_path
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError
from agentctl.records.document import Document, build_document
from agentctl.records.system import (
    DeploymentRecord,
    Finding,
    FindingRecord,
    ReadinessRecord,
    WorkerRecord,
    WorkerState,
    from_failure,
    from_os_error,
    note,
    ok,
    wrong,
)
from agentctl.records.text import format_bytes
from agentctl.records.times import format_rfc3339, format_span, now
from agentctl.runs.workers.liveness import WorkerDeath
from agentctl.service.family import OperationFamily
from agentctl.service.hosting import PROBE_SECONDS, Hosting
from agentctl.store.repositories import run_reads, workers
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.schema import SCHEMA_VERSION, StoredVersion, describe_newer

_LEAST_FREE = 100_000_000
"""Free bytes of a disk below which a database will soon fail to write."""

_LITTLE_FREE = 1_000_000_000
"""Free bytes of a disk below which it needs attention."""


def check_schema(check: str, where: str, version: StoredVersion | None) -> Iterator[Finding]:
    """Describe the schema of a database that this version works with."""
    if version is not None and version.is_newer:
        remedy = "upgrade this installation; until then the older version works, too"
        yield note(check, describe_newer(version), remedy)
    else:
        yield ok(check, f"{where} is a database of agentctl, schema {SCHEMA_VERSION}")
    if version is not None and not version.allows_text_rows:
        text = "its upgrade is not finished: streams are stored as earlier versions read them"
        yield note(check, text, "if you do not need the way back: agentctl db migrate --finish")


def check_space(check: str, folder: Path) -> Finding:
    """Check that the disk of a database has free space."""
    free = shutil.disk_usage(folder).free
    text = f"{format_bytes(free)} are free on its disk"
    remedy = "free some space"
    if free < _LEAST_FREE:
        return wrong(check, text, remedy)
    if free < _LITTLE_FREE:
        return note(check, text, remedy)
    return ok(check, text)


_DEATHS: dict[WorkerDeath | None, str | None] = {
    None: None,
    WorkerDeath.EXITED: "its process has ended",
    WorkerDeath.NO_HEARTBEAT: "it has no heartbeat",
}
"""The reasons for which a worker counts as dead; None for a worker that lives."""


class DeploymentOperations(OperationFamily):
    """The readiness of this instance, and the report about the deployment."""

    async def get_readiness(self) -> Document[ReadinessRecord]:
        checks: dict[str, Literal["ok", "failed", "stale", "degraded"]] = {
            "database": "ok" if await self.hosting.readiness.get_result() else "failed",
            "runs": "failed" if self.hosting.engine.draining else "ok",
        }

        if self.hosting.settings.left_out:
            checks["components"] = "degraded"

        status: Literal["ready", "unavailable"] = "ready"
        if "failed" in checks.values():
            status = "unavailable"

        return build_document(ReadinessRecord(status=status, checks=checks))

    async def get_deployment(self) -> Document[DeploymentRecord]:
        async with self.audit("get_deployment"):
            workers = await _survey_workers(self.hosting)
            findings = [_judge_worker(row, record) for row, record in workers]

            for entry in self.hosting.settings.databases:
                where = display_url(entry.url)
                version = self.hosting.databases[entry.id].version
                findings += check_schema(f"database {entry.id}", where, version)

            disk_findings = await self.hosting.disks.get_result()
            if disk_findings is None:
                text = f"they have not responded within {PROBE_SECONDS:g} s"
                disk_findings = [wrong("disks", text)]
            findings += disk_findings

            return build_document(
                DeploymentRecord(
                    version=__version__,
                    schema_version=SCHEMA_VERSION,
                    workers=[record for _, record in workers],
                    findings=[
                        FindingRecord(
                            check=finding.check,
                            verdict=finding.verdict,
                            what=finding.what,
                            remedy=finding.remedy,
                        )
                        for finding in findings
                    ],
                )
            )


async def _survey_workers(hosting: Hosting) -> list[tuple[WorkerRow, WorkerRecord]]:
    """Return the workers that have a row, the oldest first."""
    databases = hosting.databases
    deaths = await hosting.monitor.check_all()
    live = Counter[str | None]()
    at_work = set[str | None]()
    for database_id in databases:
        read = databases[database_id].read
        live.update(await read(run_reads.count_live_by_owner()))
        at_work.update(await read(run_reads.list_owners_at_work()))

    def build(row: WorkerRow) -> WorkerRecord:
        reason = _DEATHS[deaths[row.worker_id]]
        state: WorkerState = "idle"
        if reason:
            state = "dead"
        elif row.worker_id in at_work:
            state = "working"

        return WorkerRecord(
            worker_id=row.worker_id,
            host=row.host,
            pid=row.pid,
            schema_version=row.schema_version,
            started_at=format_rfc3339(row.started_at),
            heartbeat_at=format_rfc3339(row.beat),
            state=state,
            reason=reason,
            live_runs=live[row.worker_id],
        )

    rows = await databases.system.read(workers.list_workers())
    return [(row, build(row)) for row in rows if row.worker_id in deaths]


def _judge_worker(row: WorkerRow, record: WorkerRecord) -> Finding:
    """Describe a worker, with a remedy if it is dead or of another version."""
    check = f"worker {row.worker_id[:13]}"
    runs = record["live_runs"]
    what = f"process {row.pid} on {row.host}, with {runs} live {'run' if runs == 1 else 'runs'}"

    if record["reason"]:
        remedy = "another process ends its runs; agentctl doctor --runs shows them"
        return note(check, f"dead: {record['reason']}: {what}", remedy)

    # The clocks of two hosts may differ.
    uptime = format_span(max(0, now() - row.started_at) / 1_000_000)
    silence = format_span(max(0, now() - row.beat) / 1_000_000)
    what = f"{record['state']}: {what}, up for {uptime}, last heartbeat {silence} ago"

    if row.schema_version != SCHEMA_VERSION:
        text = f"{what}; its program has schema {row.schema_version}, this one {SCHEMA_VERSION}"
        return note(check, text, "replace the servers of the other version")

    return ok(check, what)


def examine_disks(settings: Settings) -> list[Finding]:
    """Check the free space for all databases; blocks while a disk does."""
    findings = list[Finding]()
    for entry in settings.databases:
        check = f"database {entry.id}"
        try:
            if is_sqlite_url(entry.url):
                findings.append(check_space(check, sqlite_path(entry.url).parent))
        except AgentctlError as failure:
            findings.append(from_failure(check, failure))
        except OSError as failure:
            findings.append(from_os_error(check, failure))
    return findings
