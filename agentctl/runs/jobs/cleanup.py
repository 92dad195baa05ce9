"""The cleanup of data with a limited lifetime (docs/retention.md).

That is: events of finished runs, idempotency keys, the sums of single hours, webhook deliveries,
audit entries, files without a session, idle sessions, decided approvals and stale lock files.

The unit of work of retention is a few sessions with a bounded number of runs, so that other writers
get their turn in between. Each unit has an entry in the audit log with the number and a hash of the
ids. A clock that is wrong for a minute would delete data that nothing brings back: `ClockGuard`
detects it first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from agentctl.config.settings import Settings
from agentctl.config.upkeep import Retention
from agentctl.records.audit import EXPIRE, EXPIRE_APPROVALS, EXPIRE_SESSIONS
from agentctl.records.kinds import KINDS
from agentctl.records.logs import RateLimitedLog
from agentctl.records.sessions import hash_ids
from agentctl.records.times import DAY, HOUR, format_rfc3339, now
from agentctl.runs.jobs.usage import KEEP_HOURS
from agentctl.runs.workers import liveness
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.listing import RowPage
from agentctl.store.repositories import (
    approvals,
    audit,
    events,
    files,
    idempotency,
    retention,
    store_items,
    usage,
    webhooks,
    workers,
)
from agentctl.store.repositories.retention import IdleRow, IdleSessions
from agentctl.store.uploads import Uploads

JUMP = HOUR
"""Microseconds that the wall clock may advance beyond the steady clock between two observations."""

HOLD = DAY
"""Microseconds of the steady clock for which a doubtful clock must run on before it is trusted, and
the age of the newest row from which the clock of a new process is doubtful."""


def read_steady_clock() -> int:
    """Return the time since the start of the machine in microseconds, with suspensions if known."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    return time.monotonic_ns() // 1_000


class ClockGuard:
    """The wall clock of this process, compared with its steady clock.

    The clock of a new process is doubtful until `compare` is called. A clock that jumps ahead
    becomes doubtful; it is trusted again when it jumps back, or after a day without a jump.

    Args:
        wall: the wall clock in microseconds.
        steady: a clock that is never set, in microseconds.

    Attributes:
        is_compared: True once `compare` was called.
        present: the time of the wall clock at the last observation, in microseconds UTC.
    """

    def __init__(
        self, *, wall: Callable[[], int] = now, steady: Callable[[], int] = read_steady_clock
    ) -> None:
        self.is_compared = False
        self._wall = wall
        self._steady = steady
        self._seen = steady()
        self.present = wall()
        self._offset = self.present - self._seen
        self._before_jump: int | None = None
        self._trusted_from = self._seen + HOLD

    @property
    def is_trusted(self) -> bool:
        return self._seen >= self._trusted_from

    def compare(self, newest: int | None) -> None:
        """Trust the clock of a new process if it is at most a day ahead of `newest`.

        That is the time of the newest row; None without rows.
        """
        self.is_compared = True
        if newest is not None and self._wall() - newest <= HOLD:
            self._trusted_from = self._seen

    def observe(self) -> bool:
        """Read both clocks, every few seconds. Return True if the wall clock has jumped ahead."""
        steady = self._steady()
        self.present = self._wall()
        offset = self.present - steady
        passed = steady - self._seen
        self._seen = steady
        if offset - self._offset > JUMP or passed > HOLD:
            if self._before_jump is None:
                self._before_jump = self._offset
            self._offset = offset
            self._trusted_from = steady + HOLD
            return True
        self._offset = offset
        if self._before_jump is not None and offset - self._before_jump <= JUMP:
            self._before_jump = None
            self._trusted_from = steady
        elif self._before_jump is not None and self.is_trusted:
            self._before_jump = None
        return False


async def observe_clock(guard: ClockGuard, databases: Databases, log: RateLimitedLog) -> None:
    """Observe the clock, and compare it once with the newest entry of the audit log.

    Raises:
        Unavailable: the system database does not answer; the next call compares.
    """
    if guard.observe():
        log.log(
            "the clock of this machine was set ahead by more than an hour: old data is not deleted"
            " until the clock is set back, or for a day"
        )
    if not guard.is_compared:
        guard.compare(await databases.system.read(audit.get_newest_time()))


UNBOUND_HOURS = 24
"""Hours after which a file without a session is deleted."""

CHECKED_BLOBS = 500
"""Bytes that one check of a database looks for."""

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
    clock = asyncio.get_running_loop().time
    removed = 0
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
    ids = list[str]()
    runs = 0
    for row in rows:
        if not row.is_removable:
            continue
        if ids and (len(ids) == UNIT_SESSIONS or runs + row.run_count > UNIT_RUNS):
            yield ids
            ids = []
            runs = 0
        ids.append(row.session_id)
        runs += row.run_count
    if ids:
        yield ids


@unit
def _remove(session_ids: Sequence[str], before: int) -> Steps[list[str]]:
    removal = yield from retention.remove_sessions(session_ids, idle_before=before)
    return removal["removed"]


async def delete_decided_approvals(
    databases: Databases, database: Database, ages: Ages, moment: int, seconds: float
) -> int:
    """Delete the decided approvals of a database whose run has ended.

    Those of held sessions stay, and those of a call whose outcome is not known. Arguments, result
    and errors are those of `delete_idle_sessions`.
    """
    if not ages.table.approval_days:
        return 0
    clock = asyncio.get_running_loop().time
    removed = 0
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


CLEANUP_SECONDS = 60.0
"""Time between two cleanups."""

CLEANUP_SHARE = 0.1
"""Maximum share of its time that the process which sweeps spends on the rows of one kind."""

EVENT_RETENTION = DAY
"""Time that the events of a run are kept after its end, in microseconds."""

DELIVERED_DAYS = 7
"""Days that a delivered webhook is kept."""

UNDELIVERED_DAYS = 30
"""Days that a webhook is kept which waits or is dead."""

MAXIMUM_DELIVERIES = 100_000
"""Maximum number of webhook deliveries in one database; the oldest delivered ones are deleted
first, ones that wait last."""

NO_AGES = Ages()

_log = logging.getLogger("agentctl.runs")


async def delete_expired(
    databases: Databases,
    *,
    ages: Ages = NO_AGES,
    guard: ClockGuard | None = None,
    seconds: float = CLEANUP_SECONDS * CLEANUP_SHARE,
    deleted: Counter[str] | None = None,
) -> None:
    """Clean up the open databases once.

    Args:
        guard: by a clock that it doubts, only stale lock files are deleted; None to trust it.
        seconds: maximum time for the rows of each kind; later cleanups delete the rest.
        deleted: receives the numbers of deleted rows by their kind.
    """
    counts = Counter[str]() if deleted is None else deleted
    # By the time that was trusted: the clock may have been set since.
    is_trusted, at = (True, now()) if guard is None else (guard.is_trusted, guard.present)
    for database in databases.get_open().values() if is_trusted else ():
        # The earlier of two clocks: one server with a wrong clock must not delete for all.
        moment = min(at, await database.clock())
        await _delete_rows(databases, database, ages, moment, seconds, counts)
    for database in databases.get_open().values() if databases.outbox.is_used else ():
        if await database.read(webhooks.count()) > MAXIMUM_DELIVERIES:
            lost = await database.write(webhooks.drop_surplus(MAXIMUM_DELIVERIES))
            if lost:
                _log.warning("%d webhook deliveries were dropped: too many wait", lost)
    present = await databases.system.read(workers.list_workers())
    liveness.remove_stale_locks(databases.system.lock_folder, {row.worker_id for row in present})


async def _delete_rows(
    databases: Databases,
    database: Database,
    ages: Ages,
    moment: int,
    seconds: float,
    counts: Counter[str],
) -> None:
    async def delete_older(kind: str, has_older: Work[bool], delete: Work[int]) -> None:
        counts[kind] += await _delete_older(database, has_older, delete, seconds)

    deletions = [("sessions", delete_idle_sessions), ("approvals", delete_decided_approvals)]
    for name, delete_ages in deletions:
        removed = await delete_ages(databases, database, ages, moment, seconds)
        counts[name] += removed
        if removed:
            _log.info("%d %s of database %s were deleted for their age", removed, name, database.id)
    before = moment - EVENT_RETENTION
    await delete_older("events", events.has_older(before), events.delete_older(before))
    before = moment - idempotency.KEY_LIFETIME
    await delete_older("keys", idempotency.has_older(before), idempotency.delete_older(before))
    before = moment - UNBOUND_HOURS * HOUR
    await delete_older("files", files.has_unbound(before), files.delete_unbound(before))
    await delete_older("days", files.has_other_days(moment), files.delete_other_days(moment))
    before = moment - KEEP_HOURS * HOUR
    await delete_older("hours", usage.has_older_hours(before), usage.delete_older_hours(before))
    has_expired = store_items.has_expired(moment)
    await delete_older("items", has_expired, store_items.delete_expired(moment))
    delivered = moment - DELIVERED_DAYS * DAY
    before = moment - UNDELIVERED_DAYS * DAY
    has_older = webhooks.has_older(delivered, before)
    await delete_older("deliveries", has_older, webhooks.delete_older(delivered, before))
    if database is databases.system and ages.audit is not None:
        before = moment - ages.audit * DAY
        has_older = audit.has_older(before - DAY)
        await delete_older("audit", has_older, _delete_and_record(before))


async def _delete_older(
    database: Database, has_older: Work[bool], delete: Work[int], seconds: float
) -> int:
    """Delete unit by unit, so that other writers get their turn in between.

    A read first finds out whether there is anything to delete: it blocks no writer.
    """
    clock = asyncio.get_running_loop().time
    deleted = 0
    end = clock() + seconds
    if not await database.read(has_older, size="large"):
        return 0
    while (batch := await database.write(delete)) and clock() < end:
        deleted += batch
    return deleted + batch


@unit
def _delete_and_record(before: int) -> Steps[int]:
    # Of a signed audit log, only what a signed head allows: verifiers miss everything else.
    head = yield from audit.get_newest_head()
    last = audit.LAST_NUMBER if head is None else head.expired_seq
    deleted = yield from audit.delete_older(before, last)
    if deleted:
        reason = f"older than {format_rfc3339(before)}"
        yield from append_cleanup_entry(EXPIRE, deleted, reason)
    return deleted


async def delete_unused_bytes(uploads: Uploads, databases: Databases, guard: ClockGuard) -> None:
    """Delete bytes that were noted because they may have no file, and uploads that were cut off.

    Bytes that were stored in the last hour stay: their file may not exist yet. An upload stores its
    bytes again, also if they exist, so a file that is made at this moment keeps its bytes.
    """
    if not guard.is_trusted:
        return
    before = guard.present - HOUR
    await uploads.remove_abandoned(before)
    for database in databases.get_open().values():
        noted = files.list_checks(CHECKED_BLOBS, before, guard.present)
        for seq, blob in await database.read(noted):
            if await _is_used(blob, databases) or await uploads.store.remove(blob, before):
                await database.write(files.end_check(seq))


async def _is_used(blob: str, databases: Databases) -> bool:
    """Return True if a file has the bytes: the files of a user in several databases share them."""
    # Twice, because a fork copies a file from one database to another. If the original was there
    # when the first database was read, and is gone when the second one is, then the copy is in the
    # first one when it is read again (`service.repeats`).
    for _ in range(2):
        for database in databases.values():
            if await database.read(files.has_blob(blob)):
                return True
    return False
