"""The deliveries of webhooks, in every serving process.

Any process may deliver any event. It claims due attempts with a lease. If a process dies, another
process makes its attempts when the lease has ended. An event is therefore delivered at least once,
always under one id (decision 85).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.records.logs import RateLimitedLog
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import webhooks
from agentctl.store.repositories.webhooks import Attempt, AttemptEnd, Waits
from agentctl.webhooks.attempts import (
    GONE,
    JITTER,
    LONGEST_WAIT,
    SCHEDULE,
    Outcome,
    Receiver,
    plan_next,
)
from agentctl.webhooks.signing import load_signer
from agentctl.work.event_loop import Tasks

IN_FLIGHT = 4
"""Maximum number of attempts of one endpoint that a process makes at the same time."""

LEASE_SECONDS = 60.0
"""Time after which the attempt of a process that died is made again; longer than any attempt."""

TICK_SECONDS = 2.0
"""Maximum time between two searches for due attempts, of commands and dead servers as well."""

RECALL_SECONDS = 60.0
"""Time between two searches for deliveries that wait for a time of a clock that was set back."""

_WAITS = Waits(
    after=[int(seconds * (1 + JITTER) * 1_000_000) for seconds in SCHEDULE[1:]],
    longest=int(LONGEST_WAIT * (1 + JITTER) * 1_000_000),
    tolerance=int(LEASE_SECONDS * 1_000_000),
)
"""The longest waits of deliveries: a time beyond them was written by another clock."""

_log = logging.getLogger("agentctl.webhooks")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The deliveries of an endpoint that wait, and the time of the oldest one."""

    count: int = 0
    oldest_at: int | None = None


class DeliveryCounters:
    """Counts of the attempts of a process, by endpoint."""

    waiting: Mapping[str, Waiting]
    """The deliveries that wait in all open databases, once they were counted."""

    def __init__(self) -> None:
        self.delivered = Counter[str]()
        self.failed = Counter[str]()
        self.dead = Counter[str]()
        self.waiting = {}


class Deliveries:
    """The deliveries that this process makes."""

    due: asyncio.Event
    """Set when an attempt may be due."""

    def __init__(self, databases: Databases) -> None:
        self.counters = DeliveryCounters()
        self.due = asyncio.Event()
        self._databases = databases
        self._receivers: Mapping[str, Receiver] = {}
        # The name of this process in the leases of attempts.
        self._holder = new_id()
        # The attempts in progress, by endpoint.
        self._in_flight = Counter[str]()
        self._attempts = Tasks()
        # The time of the event loop from which on `_recall` searches again.
        self._next_recall = 0.0
        # By endpoint: the database that was given the last slot.
        self._last_served: dict[str, str] = {}
        self._rate_limited = RateLimitedLog(_log)

    def prepare(self, settings: Settings) -> None:
        """Load the endpoints of the configuration."""
        self._receivers = load_receivers(settings)
        self._databases.outbox.wake = self.due.set

    async def count_waiting(self) -> None:
        """Store what waits in the counters."""
        self.counters.waiting = await count_waiting(self._databases)

    async def start_due(self) -> None:
        """Start the attempts that are due, as many as may be made at once.

        A database that does not answer is left out.
        """
        await self._recall()

        disabled: set[str] | None = None
        for webhook_id in self._receivers:
            if self._in_flight[webhook_id] >= IN_FLIGHT:
                continue

            due_databases = await self._find_due(webhook_id)
            if not due_databases:
                continue

            if disabled is None:
                disabled = await self._read_disabled()
            if disabled is None:
                return
            if webhook_id not in disabled:
                await self._claim_in_turns(webhook_id, due_databases)

    async def _recall(self) -> None:
        """Let deliveries be due whose times were written by a clock that was set back."""
        clock = asyncio.get_running_loop().time
        if clock() < self._next_recall:
            return
        self._next_recall = clock() + RECALL_SECONDS

        for database in self._databases.get_open().values():
            with self._reporting_failures():
                look = webhooks.has_too_long_waits(_WAITS, now())
                if await database.read(look, size="large"):
                    count = await database.write(webhooks.recall(_WAITS, now()))
                    _log.info("%d deliveries of webhooks are due: the clock was set back", count)

    async def _find_due(self, webhook_id: str) -> list[Database]:
        """Return the databases with due attempts of an endpoint, in the order of their turns."""
        due_databases = list[Database]()
        for database in self._databases.get_open().values():
            with self._reporting_failures():
                at = await database.read(webhooks.get_next_time(webhook_id))
                if at is not None and at <= now():
                    due_databases.append(database)

        # Begin after the database that got the last slot.
        last_served = self._last_served.get(webhook_id)
        ids = [database.id for database in due_databases]
        if last_served not in ids:
            return due_databases
        start = ids.index(last_served) + 1
        return [*due_databases[start:], *due_databases[:start]]

    async def _read_disabled(self) -> set[str] | None:
        """Return the ids of the disabled endpoints; None if they cannot be read now."""
        with self._reporting_failures():
            rows = await self._databases.system.read(webhooks.list_disabled())
            return {row.webhook_id for row in rows}
        return None

    async def _claim_in_turns(self, webhook_id: str, due_databases: Sequence[Database]) -> None:
        """Share the free slots of an endpoint among the databases that have attempts for it.

        So a database with a backlog does not delay the events of other databases: it gets every
        slot only while nothing else is due.
        """
        sharing = due_databases
        while sharing:
            # Databases that used their whole share may get the slots that other databases have
            # left.
            with_more = list[Database]()
            for number, database in enumerate(sharing):
                free_slots = IN_FLIGHT - self._in_flight[webhook_id]
                share = math.ceil(free_slots / (len(sharing) - number))
                if share <= 0:
                    return
                if await self._claim(webhook_id, database, share) == share:
                    with_more.append(database)
            sharing = with_more

    async def _claim(self, webhook_id: str, database: Database, limit: int) -> int:
        """Start due attempts of an endpoint from one database; return their number."""
        with self._reporting_failures():
            until = now() + int(LEASE_SECONDS * 1_000_000)
            work = webhooks.claim(webhook_id, self._holder, now(), until, limit)
            attempts = await database.write(work)
            for attempt in attempts:
                self._last_served[webhook_id] = database.id
                self._in_flight[webhook_id] += 1
                receiver = self._receivers[webhook_id]
                self._attempts.start(self._attempt(database, receiver, attempt))
            return len(attempts)
        return 0

    @contextlib.contextmanager
    def _reporting_failures(self) -> Iterator[None]:
        """Leave out a database that does not answer: other databases may work."""
        try:
            yield
        except errors.AgentctlError as error:
            self._rate_limited.log("webhooks cannot be delivered now: %s", error.detail)

    async def _attempt(self, database: Database, receiver: Receiver, attempt: Attempt) -> None:
        """Make an attempt, store its end, and free its slot."""
        webhook_id = receiver.webhook.id
        try:
            outcome = await receiver.send(attempt.event_id, attempt.body.encode())
            await self._store_end(database, webhook_id, attempt, outcome)
        except errors.AgentctlError as error:
            # The lease ends, and the attempt is made again under the same id.
            self._rate_limited.log("the end of an attempt was not stored: %s", error.detail)
        finally:
            self._in_flight[webhook_id] -= 1
            self.due.set()

    async def _store_end(
        self, database: Database, webhook_id: str, attempt: Attempt, outcome: Outcome
    ) -> None:
        at = now()

        if outcome.error is None:
            end = AttemptEnd("delivered", at, outcome.status, None, at)
            self.counters.delivered[webhook_id] += 1

        elif outcome.status == GONE:
            # Disable the endpoint first: nothing else is sent to it. The event waits until it is
            # enabled, and for a moment, because `start_due` may have read the endpoints before.
            reason = "the endpoint responded with 410 (Gone)"
            await self._databases.system.write(webhooks.disable(webhook_id, at, reason))
            self.counters.failed[webhook_id] += 1
            _log.warning("webhook %s is disabled: %s", webhook_id, reason)

            next_at = at + int(TICK_SECONDS * 1_000_000)
            end = AttemptEnd("waiting", next_at, outcome.status, outcome.error, None)

        else:
            self.counters.failed[webhook_id] += 1
            seconds = plan_next(attempt.attempts, outcome)
            if seconds is not None:
                next_at = at + int(seconds * 1_000_000)
                end = AttemptEnd("waiting", next_at, outcome.status, outcome.error, None)
            else:
                end = AttemptEnd("dead", at, outcome.status, outcome.error, None)
                self.counters.dead[webhook_id] += 1
                _log.warning(
                    "webhook %s: event %s was not delivered after %d attempts: %s",
                    webhook_id,
                    attempt.event_id,
                    attempt.attempts,
                    outcome.error,
                )

        await database.write(webhooks.end_attempt(attempt, self._holder, end))

    async def close(self) -> None:
        """Stop, and return the attempts in progress: another process makes them at once."""
        if not self._receivers:
            return
        await self._attempts.cancel_all()
        for receiver in self._receivers.values():
            await receiver.close()
        for database in self._databases.get_open().values():
            with contextlib.suppress(errors.AgentctlError):
                await database.write(webhooks.release(self._holder, now()))


def load_receivers(settings: Settings) -> dict[str, Receiver]:
    """Return the endpoints by id; InvalidConfiguration for a secret or key that is not valid."""
    where = str(settings.path or "the configuration")
    if settings.webhooks:
        # It loads the HTTP packages, which would delay the requests during the first attempt.
        import_module("agentctl.webhooks.bounded_client")
    return {
        webhook.id: Receiver(webhook, load_signer(webhook, where)) for webhook in settings.webhooks
    }


async def count_waiting(databases: Databases) -> dict[str, Waiting]:
    """Return what waits in the open databases, by endpoint; Unavailable if one does not answer."""
    waiting: dict[str, Waiting] = {}
    for database in databases.get_open().values():
        for row in await database.read(webhooks.count_by_state(), size="large"):
            if row.state != "waiting":
                continue
            sum_so_far = waiting.get(row.webhook_id, Waiting())
            oldest_at = row.oldest_at
            if sum_so_far.oldest_at is not None:
                oldest_at = min(oldest_at, sum_so_far.oldest_at)
            waiting[row.webhook_id] = Waiting(sum_so_far.count + row.count, oldest_at)
    return waiting
