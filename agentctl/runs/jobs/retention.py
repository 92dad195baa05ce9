"""Retention by the server: idle sessions and decided approvals are deleted at an age.

The unit of work is a few sessions with a bounded number of runs, so that other writers get their
turn in between. Each unit has an entry in the audit log with the number and a hash of the ids
(docs/retention.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import field

from agentctl.config.settings import Settings
from agentctl.config.upkeep import Retention
from agentctl.light_dataclass import dataclass
from agentctl.records.audit import EXPIRE_APPROVALS, EXPIRE_SESSIONS
from agentctl.records.kinds import KINDS
from agentctl.records.sessions import hash_ids
from agentctl.records.times import DAY, format_rfc3339, now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.listing import RowPage
from agentctl.store.repositories import approvals, audit, retention
from agentctl.store.repositories.retention import IdleRow, IdleSessions

PAGE_SESSIONS = 100
"""Idle sessions that one read finds."""

UNIT_SESSIONS = 20
UNIT_RUNS = 1_000
"""Sessions of one unit, and runs of these sessions; a session with more runs is a unit alone."""

UNIT_APPROVALS = 100
"""Approvals of one unit."""


@dataclass(frozen=True, slots=True)
class Ages:
    """The ages at which a server deletes data, in days.

    Attributes:
        audit: age of audit entries; None for no limit.
        components: days since the last use of a session, by kind and id of the components that
            have their own.
    """

    audit: int | None = None
    table: Retention = Retention()
    components: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings) -> Ages:
        """Return the ages of a configuration."""
        days: dict[tuple[str, str], int] = {}
        for kind, names in KINDS.items():
            for component in getattr(settings, names.path):
                if component.retention_days:
                    days[kind, component.id] = component.retention_days
        return cls(settings.audit.keep_days, settings.retention, days)


async def delete_idle_sessions(
    databases: Databases, database: Database, ages: Ages, moment: int, seconds: float
) -> int:
    """Delete the sessions of a database that were not used for as long as the ages allow.

    Held sessions and those with a live or paused run stay.

    Args:
        moment: the time from which ages are counted back, microseconds UTC.
        seconds: maximum time; a later call deletes the rest.

    Returns:
        The number of deleted sessions.

    Raises:
        Unavailable: a database does not answer, or the audit log cannot be written.
    """
    clock, removed = asyncio.get_running_loop().time, 0
    end = clock() + seconds
    async with aclosing(_choose_sessions(database, ages, moment)) as choices:
        async for choice in choices:
            page: RowPage[IdleRow] | None = None
            while page is None or page.next is not None:
                after = None if page is None else page.next
                work = retention.list_idle(choice, PAGE_SESSIONS, after)
                page = await database.read(work, size="large")
                for session_ids in _divide(page.rows):
                    removal = _remove(session_ids, choice.before)
                    record = _Record("sessions", EXPIRE_SESSIONS, choice.before)
                    removed += await _write(databases, database, record, session_ids, removal)
                    # Not before the first unit: reads alone may take that long.
                    if clock() >= end:
                        return removed
    return removed


async def _choose_sessions(
    database: Database, ages: Ages, moment: int
) -> AsyncGenerator[IdleSessions]:
    """Yield the sessions of each component, and those without one, whose age is limited."""
    default = ages.table.idle_days
    if not default and not ages.components:
        return
    for component_id in await database.read(retention.list_components()):
        for kind in KINDS:
            if days := ages.components.get((kind, component_id), default):
                yield IdleSessions(moment - days * DAY, kind, component_id)
    if default:
        yield IdleSessions(moment - default * DAY, without_component=True)


def _divide(rows: Sequence[IdleRow]) -> Iterator[list[str]]:
    """Yield the ids of the sessions that can be removed, in units."""
    ids, runs = list[str](), 0
    for row in rows:
        if not row.is_removable:
            continue
        if ids and (len(ids) == UNIT_SESSIONS or runs + row.run_count > UNIT_RUNS):
            yield ids
            ids, runs = [], 0
        ids.append(row.session_id)
        runs += row.run_count
    if ids:
        yield ids


@unit
def _remove(session_ids: Sequence[str], before: int) -> Steps[list[str]]:
    removal = yield from retention.remove_sessions(session_ids, idle_before=before)
    return removal.removed


async def delete_decided_approvals(
    databases: Databases, database: Database, ages: Ages, moment: int, seconds: float
) -> int:
    """Delete the decided approvals of a database whose run has ended.

    Those of held sessions stay, and those of a call whose outcome is not known. Arguments, result
    and errors are those of `delete_idle_sessions`.
    """
    if not ages.table.approval_days:
        return 0
    clock, removed = asyncio.get_running_loop().time, 0
    end = clock() + seconds
    before = moment - ages.table.approval_days * DAY
    record = _Record("approvals", EXPIRE_APPROVALS, before)
    while True:
        ids = await database.read(approvals.list_decided(before, UNIT_APPROVALS), size="large")
        work = approvals.delete_decided(ids, before)
        deleted = await _write(databases, database, record, ids, work) if ids else 0
        removed += deleted
        if not deleted or clock() >= end:
            return removed


@dataclass(frozen=True, slots=True)
class _Record:
    """The audit entries of one kind of removal."""

    noun: str
    operation: str
    before: int

    def append(self, ids: Sequence[str], database: str | None = None) -> Work[None]:
        resource = f"{self.noun}:{hash_ids(ids)}"
        if database is not None:
            resource += f",database:{database}"
        reason = f"not used since {format_rfc3339(self.before)}"
        return append_cleanup_entry(self.operation, len(ids), reason, resource)


def append_cleanup_entry(
    operation: str, count: int, reason: str, resource: str | None = None
) -> Work[None]:
    """Add an entry about a deletion by age to the audit log.

    Args:
        operation: such as `records.audit.EXPIRE_SESSIONS`.
    """
    entry = audit.AuditRow(
        at=now(),
        principal="system:cleanup",
        via="local",
        operation=operation,
        resource=resource,
        outcome="allowed",
        status=None,
        reason=reason,
        request_id=None,
        count=count,
    )
    return audit.append_entry(entry)


async def _write(
    databases: Databases,
    database: Database,
    record: _Record,
    ids: Sequence[str],
    work: Work[list[str]],
) -> int:
    """Remove some ids with an entry in the audit log; return how many were removed.

    The entry is in the same transaction, or is committed first if the audit log is in another
    database (docs/contract.md "Audit"). A second entry follows if not all were removed then.
    """
    if database is databases.system:
        return len(await database.write(_with_entry(work, record.append)))
    await databases.system.write(record.append(ids, database.id))
    removed = await database.write(work)
    if len(removed) != len(ids):
        await databases.system.write(record.append(removed, database.id))
    return len(removed)


@unit
def _with_entry(
    work: Work[list[str]], append: Callable[[Sequence[str]], Work[None]]
) -> Steps[list[str]]:
    removed = yield from work
    if removed:
        yield from append(removed)
    return removed
