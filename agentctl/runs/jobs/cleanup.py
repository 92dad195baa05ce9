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

from agentctl.config.retention import Retention
from agentctl.config.settings import Settings
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
"""Microseconds of the steady clock after which a doubtful clock is trusted.

The clock of a new process is doubtful if the newest row is older than this.
"""


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
    """

    def __init__(
        self, *, wall: Callable[[], int] = now, steady: Callable[[], int] = read_steady_clock
    ) -> None:
        self.is_compared = False
        """True once `compare` was called."""

        self.present = wall()
        """The time of the wall clock at the last observation, in microseconds UTC."""

        self._wall = wall
        self._steady = steady
        # The time of the steady clock at the last observation.
        self._observed_at = steady()
        # The distance of the wall clock from the steady clock: at the last observation, and before
        # the first jump of those that made the clock doubtful.
        self._offset = self.present - self._observed_at
        self._offset_before_jump: int | None = None
        # On the steady clock.
        self._trusted_from = self._observed_at + HOLD

    @property
    def is_trusted(self) -> bool:
        """False if rows may not be deleted for their age."""
        return self._observed_at >= self._trusted_from

    def compare(self, newest: int | None) -> None:
        """Trust the clock of a new process if it is at most a day ahead of the newest row.

        Args:
            newest: the time of the newest row in microseconds UTC; None without rows.
        """
        self.is_compared = True
        if newest is not None and self._wall() - newest <= HOLD:
            self._trusted_from = self._observed_at

    def observe(self) -> bool:
        """Read both clocks. Call it every few seconds.

        Returns:
            True if the wall clock has jumped ahead since the last call.
        """
        observed_before = self._observed_at
        offset_before = self._offset
        self._observed_at = self._steady()
        self.present = self._wall()
        self._offset = self.present - self._observed_at

        advance = self._offset - offset_before
        passed = self._observed_at - observed_before
        # After a day without an observation, nobody has seen if the clock has jumped.
        if advance > JUMP or passed > HOLD:
            if self._offset_before_jump is None:
                self._offset_before_jump = offset_before
            self._trusted_from = self._observed_at + HOLD
            return True

        if self._offset_before_jump is not None:
            if self._offset - self._offset_before_jump <= JUMP:
                # It was set back.
                self._offset_before_jump = None
                self._trusted_from = self._observed_at
            elif self.is_trusted:
                self._offset_before_jump = None
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
"""Sessions that one unit deletes at most."""

UNIT_RUNS = 1_000
"""Runs of the sessions of one unit at most; a session with more runs is a unit alone."""

UNIT_APPROVALS = 100
"""Approvals of one unit."""


@dataclass(frozen=True, slots=True)
class Ages:
    """The ages at which a server deletes data, in days."""

    audit: int | None = None
    """Age of audit entries; None for no limit."""

    table: Retention = Retention()
    """The table `retention` of the configuration."""

    components: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Days since the last use of a session, by kind and id of the components with own days."""

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
    end = clock() + seconds
    removed_count = 0

    async with aclosing(_choose_sessions(database, ages, moment)) as choices:
        async for choice in choices:
            record = _Record("sessions", EXPIRE_SESSIONS, choice.before)
            page: RowPage[IdleRow] | None = None
            while page is None or page.next is not None:
                after = None if page is None else page.next
                work = retention.list_idle(choice, PAGE_SESSIONS, after)
                page = await database.read(work, size="large")

                for session_ids in _divide_into_units(page.rows):
                    removal = _remove(session_ids, choice.before)
                    removed_count += await _remove_with_entry(
                        databases, database, record, session_ids, removal
                    )
                    # Not before the first unit: reads alone may take that long.
                    if clock() >= end:
                        return removed_count

    return removed_count


async def _choose_sessions(
    database: Database, ages: Ages, moment: int
) -> AsyncGenerator[IdleSessions]:
    """Yield the sessions of each component, and those without one, whose age is limited."""
    default_days = ages.table.idle_days
    if not default_days and not ages.components:
        return

    for component_id in await database.read(retention.list_components()):
        for kind in KINDS:
            days = ages.components.get((kind, component_id), default_days)
            if days:
                yield IdleSessions(moment - days * DAY, kind, component_id)

    if default_days:
        yield IdleSessions(moment - default_days * DAY, without_component=True)


def _divide_into_units(rows: Sequence[IdleRow]) -> Iterator[list[str]]:
    """Yield the ids of the sessions that can be removed, in units."""
    session_ids = list[str]()
    run_count = 0
    for row in rows:
        if not row.is_removable:
            continue

        is_full = len(session_ids) == UNIT_SESSIONS or run_count + row.run_count > UNIT_RUNS
        if session_ids and is_full:
            yield session_ids
            session_ids = []
            run_count = 0
        session_ids.append(row.session_id)
        run_count += row.run_count

    if session_ids:
        yield session_ids


@unit
def _remove(session_ids: Sequence[str], before: int) -> Steps[list[str]]:
    removal = yield from retention.remove_sessions(session_ids, idle_before=before)
    return removal["removed"]


async def delete_decided_approvals(
    databases: Databases, database: Database, ages: Ages, moment: int, seconds: float
) -> int:
    """Delete the decided approvals of a database whose run has ended.

    Approvals of held sessions stay, and so do approvals of a call with an unknown outcome.

    Args:
        moment: the time from which ages are counted back, microseconds UTC.
        seconds: maximum time; a later call deletes the rest.

    Returns:
        The number of deleted approvals.

    Raises:
        Unavailable: a database does not answer, or the audit log cannot be written.
    """
    if not ages.table.approval_days:
        return 0

    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    removed_count = 0
    before = moment - ages.table.approval_days * DAY
    record = _Record("approvals", EXPIRE_APPROVALS, before)

    while True:
        ids = await database.read(approvals.list_decided(before, UNIT_APPROVALS), size="large")
        if not ids:
            return removed_count

        deletion = approvals.delete_decided(ids, before)
        deleted_count = await _remove_with_entry(databases, database, record, ids, deletion)
        removed_count += deleted_count
        # None deleted: other processes have deleted them, or somebody holds their sessions now.
        if not deleted_count or clock() >= end:
            return removed_count


@dataclass(frozen=True, slots=True)
class _Record:
    """The audit entries of one kind of removal."""

    noun: str

    operation: str
    """Such as `records.audit.EXPIRE_SESSIONS`."""

    before: int
    """The rows were not used since this time, microseconds UTC."""

    def append(self, ids: Sequence[str], database: str | None = None) -> Work[None]:
        """Add the entry about some ids.

        Args:
            database: id of their database; None for the database of the audit log.
        """
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


async def _remove_with_entry(
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
        removed_ids = await database.write(_with_entry(work, record.append))
        return len(removed_ids)

    await databases.system.write(record.append(ids, database.id))
    removed_ids = await database.write(work)
    if len(removed_ids) != len(ids):
        await databases.system.write(record.append(removed_ids, database.id))
    return len(removed_ids)


@unit
def _with_entry(
    work: Work[list[str]], append: Callable[[Sequence[str]], Work[None]]
) -> Steps[list[str]]:
    removed_ids = yield from work
    if removed_ids:
        yield from append(removed_ids)
    return removed_ids


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
"""Maximum number of webhook deliveries in one database.

The oldest deliveries that arrived are deleted first, and deliveries that wait last.
"""

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
        guard: while it doubts the clock, no data is deleted for its age; None to trust the clock.
        seconds: maximum time for the rows of each kind; later cleanups delete the rest.
        deleted: receives the numbers of deleted rows by their kind.
    """
    counts = Counter[str]() if deleted is None else deleted
    is_trusted = True
    at = now()
    if guard is not None:
        # By the time that was trusted: the clock may have been set since.
        is_trusted = guard.is_trusted
        at = guard.present

    if is_trusted:
        for database in databases.get_open().values():
            # The earlier of two clocks: one server with a wrong clock must not delete for all.
            moment = min(at, await database.clock())
            await _delete_rows(databases, database, ages, moment, seconds, counts)

    if databases.outbox.is_used:
        for database in databases.get_open().values():
            await _drop_surplus_deliveries(database)

    present_workers = await databases.system.read(workers.list_workers())
    worker_ids = {row.worker_id for row in present_workers}
    liveness.remove_stale_locks(databases.system.lock_folder, worker_ids)


async def _drop_surplus_deliveries(database: Database) -> None:
    if await database.read(webhooks.count()) <= MAXIMUM_DELIVERIES:
        return

    lost_count = await database.write(webhooks.drop_surplus(MAXIMUM_DELIVERIES))
    if lost_count:
        _log.warning("%d webhook deliveries were dropped: too many wait", lost_count)


async def _delete_rows(
    databases: Databases,
    database: Database,
    ages: Ages,
    moment: int,
    seconds: float,
    counts: Counter[str],
) -> None:
    """Delete the rows of each kind that are too old at a moment, and count them in `counts`."""

    async def delete_older(kind: str, has_older: Work[bool], delete: Work[int]) -> None:
        counts[kind] += await _delete_older(database, has_older, delete, seconds)

    # The ages of sessions and approvals are settings.
    deletions = [("sessions", delete_idle_sessions), ("approvals", delete_decided_approvals)]
    for noun, delete_aged in deletions:
        removed_count = await delete_aged(databases, database, ages, moment, seconds)
        counts[noun] += removed_count
        if removed_count:
            _log.info(
                "%d %s of database %s were deleted for their age", removed_count, noun, database.id
            )

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

    delivered_before = moment - DELIVERED_DAYS * DAY
    undelivered_before = moment - UNDELIVERED_DAYS * DAY
    has_older = webhooks.has_older(delivered_before, undelivered_before)
    deletion = webhooks.delete_older(delivered_before, undelivered_before)
    await delete_older("deliveries", has_older, deletion)

    if database is databases.system and ages.audit is not None:
        before = moment - ages.audit * DAY
        # A day later, so that one cleanup deletes a day of entries: each deletion adds an entry.
        has_older = audit.has_older(before - DAY)
        await delete_older("audit", has_older, _delete_and_record(before))


async def _delete_older(
    database: Database, has_older: Work[bool], delete: Work[int], seconds: float
) -> int:
    """Delete unit by unit, so that other writers get their turn in between.

    A read first finds out whether there is anything to delete: it blocks no writer.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    if not await database.read(has_older, size="large"):
        return 0

    deleted_count = 0
    while True:
        batch_count = await database.write(delete)
        deleted_count += batch_count
        if not batch_count or clock() >= end:
            return deleted_count


@unit
def _delete_and_record(before: int) -> Steps[int]:
    # Of a signed audit log, only what a signed head allows: verifiers miss everything else.
    head = yield from audit.get_newest_head()
    last = audit.LAST_NUMBER if head is None else head.expired_seq
    deleted_count = yield from audit.delete_older(before, last)
    if deleted_count:
        reason = f"older than {format_rfc3339(before)}"
        yield from append_cleanup_entry(EXPIRE, deleted_count, reason)
    return deleted_count


async def delete_unused_bytes(uploads: Uploads, databases: Databases, guard: ClockGuard) -> None:
    """Delete bytes that were noted because they may have no file, and uploads that were cut off.

    Bytes that were stored in the last hour stay: their file may not exist yet. An upload stores its
    bytes again, also if they exist, so a file that is made at this moment keeps its bytes.
    """
    if not guard.is_trusted:
        return

    before = guard.present - HOUR
    await uploads.remove_abandoned(before)

    # An upload may reserve its place after the guard has read the clock, or by the clock of another
    # machine. Only a place that is noted much later comes from a clock that was wrong.
    after = guard.present + HOUR
    for database in databases.get_open().values():
        checks = files.list_checks(CHECKED_BLOBS, before, after)
        for seq, blob in await database.read(checks):
            # Bytes that are younger stay noted, for a later call.
            if await _is_used(blob, databases) or await uploads.store.remove(blob, before):
                await database.write(files.end_check(seq))


async def _is_used(blob: str, databases: Databases) -> bool:
    """Return True if a file has the bytes: the files of a user in several databases share them."""
    # Twice, because a fork copies a file from one database to another. If the original was there
    # when the first database was read, and is gone when the second one is, then the copy is in the
    # first one when it is read again (`service.runs.repeats`).
    for _ in range(2):
        for database in databases.values():
            if await database.read(files.has_blob(blob)):
                return True
    return False
