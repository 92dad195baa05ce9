"""The deliveries of webhooks, in every serving process.

Any process may deliver any event. It claims due attempts with a lease, so the attempts of a process
that dies are made by another one when the lease has ended. An event is therefore delivered at least
once, always under one id (docs/decisions/0085).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from importlib import import_module

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.light_dataclass import dataclass
from agentctl.records.logs import RateLimitedLog
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import webhooks
from agentctl.store.repositories.webhooks import Attempt, AttemptEnd
from agentctl.webhooks.attempts import GONE, Outcome, Receiver, plan_next
from agentctl.webhooks.signing import load_signer
from agentctl.work.event_loop import Tasks

IN_FLIGHT = 4
"""Maximum number of attempts of one endpoint that a process makes at the same time."""

LEASE_SECONDS = 60.0
"""Time after which the attempt of a process that died is made again; longer than any attempt."""

TICK_SECONDS = 2.0
"""Maximum time between two looks for due attempts, such as those of commands and dead servers."""

_log = logging.getLogger("agentctl.webhooks")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The deliveries of an endpoint that wait, and the time of the oldest one."""

    count: int = 0
    oldest_at: int | None = None


class DeliveryCounters:
    """Counts of the attempts of a process, by endpoint.

    Attributes:
        waiting: what waits in all open databases, once it was counted.
    """

    def __init__(self) -> None:
        self.delivered = Counter[str]()
        self.failed = Counter[str]()
        self.dead = Counter[str]()
        self.waiting: Mapping[str, Waiting] = {}


class Deliveries:
    """The deliveries that this process makes.

    Attributes:
        due: set when an attempt may be due.
    """

    def __init__(self, databases: Databases) -> None:
        self.counters = DeliveryCounters()
        self.due = asyncio.Event()
        self._databases = databases
        self._receivers: Mapping[str, Receiver] = {}
        self._holder = new_id()
        self._in_flight = Counter[str]()
        self._attempts = Tasks()
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
        disabled: set[str] | None = None
        for webhook_id, receiver in self._receivers.items():
            for database in self._databases.get_open().values():
                free = IN_FLIGHT - self._in_flight[webhook_id]
                if free <= 0:
                    break
                try:
                    at = await database.read(webhooks.get_next_time(webhook_id))
                    if at is None or at > now():
                        continue
                    if disabled is None:
                        rows = await self._databases.system.read(webhooks.list_disabled())
                        disabled = {row.webhook_id for row in rows}
                    if webhook_id in disabled:
                        break
                    until = now() + int(LEASE_SECONDS * 1_000_000)
                    claim = webhooks.claim(webhook_id, self._holder, now(), until, free)
                    claimed = await database.write(claim)
                except errors.AgentctlError as error:
                    # The other databases may answer.
                    self._rate_limited.log("webhooks cannot be delivered now: %s", error.detail)
                    continue
                for attempt in claimed:
                    self._in_flight[webhook_id] += 1
                    self._attempts.start(self._attempt(database, receiver, attempt))

    async def _attempt(self, database: Database, receiver: Receiver, attempt: Attempt) -> None:
        webhook_id = receiver.webhook.id
        try:
            outcome = await receiver.send(attempt.event_id, attempt.body.encode())
            await self._store(database, webhook_id, attempt, outcome)
        except errors.AgentctlError as error:
            # The lease ends, and the attempt is made again under the same id.
            self._rate_limited.log("the end of an attempt was not stored: %s", error.detail)
        finally:
            self._in_flight[webhook_id] -= 1
            self.due.set()

    async def _store(
        self, database: Database, webhook_id: str, attempt: Attempt, outcome: Outcome
    ) -> None:
        at = now()
        if outcome.error is None:
            end = AttemptEnd("delivered", at, outcome.status, None, at)
            self.counters.delivered[webhook_id] += 1
        elif outcome.status == GONE:
            # First the endpoint: nothing else is sent to it. The event waits until it is enabled,
            # and for a moment, because `start_due` may have read the endpoints before.
            reason = "the endpoint responded with 410 (Gone)"
            await self._databases.system.write(webhooks.disable(webhook_id, at, reason))
            self.counters.failed[webhook_id] += 1
            _log.warning("webhook %s is disabled: %s", webhook_id, reason)
            next_at = at + int(TICK_SECONDS * 1_000_000)
            end = AttemptEnd("waiting", next_at, outcome.status, outcome.error, None)
        else:
            self.counters.failed[webhook_id] += 1
            seconds = plan_next(attempt.attempts, outcome)
            state = "dead" if seconds is None else "waiting"
            next_at = at + int((seconds or 0) * 1_000_000)
            end = AttemptEnd(state, next_at, outcome.status, outcome.error, None)
            if seconds is None:
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
            if row.state == "waiting":
                known = waiting.get(row.webhook_id, Waiting(0, row.oldest_at))
                oldest = min(known.oldest_at or row.oldest_at, row.oldest_at)
                waiting[row.webhook_id] = Waiting(known.count + row.count, oldest)
    return waiting
