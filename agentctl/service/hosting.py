"""The shared objects of an open service, the readiness of its databases, and its rate limits.

A rate limit (docs/budgets.md "Rate limits") is a bucket of tokens for each caller: it holds as many
tokens as a minute allows, and is filled evenly. The buckets are in memory, so that a refused
request does not load a database.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agentctl import errors
from agentctl.auth.tokens.account_tokens import AccountTokens
from agentctl.errors import RateLimited
from agentctl.records.system import Finding
from agentctl.runs.engine.cancel import Canceller
from agentctl.runs.engine.changes import DatabaseChanges
from agentctl.runs.engine.engine import Engine
from agentctl.runs.gate.budgets import Prices
from agentctl.runs.gate.gate import Gate
from agentctl.runs.jobs.lanes import Jobs
from agentctl.runs.jobs.usage import UsageSums
from agentctl.runs.life.admission import StoredVersions
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.service.reads.family import ReadHosting
from agentctl.store.database import probe
from agentctl.store.databases import Databases
from agentctl.store.uploads import Uploads
from agentctl.webhooks.deliveries import Deliveries
from agentctl.work.event_loop import Tasks

if TYPE_CHECKING:
    from agentctl.auth.audit_chain import StatementKey
    from agentctl.auth.verifier import Verifier

MAXIMUM_CALLERS = 10_000
"""Callers whose buckets are kept, the latest callers. A caller without a bucket has a full one."""

PROBE_SECONDS = 2.0
"""Seconds in which every database, and every disk, has to respond."""

T = TypeVar("T")


class RateLimiter:
    """One limit of the table `[rate_limits]`, for each caller.

    Args:
        per_minute: how much a caller may do in a minute; 0 for no limit.
        excess: what the error says that the caller has done, with a place for the number.
    """

    def __init__(self, per_minute: int, excess: str) -> None:
        self.per_minute = per_minute
        self._excess = excess
        # The content of the bucket of a caller at a time; the latest callers last.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count something that a caller does.

        Raises:
            RateLimited: the caller has done too much; with the time until its next token.
        """
        if not self.per_minute:
            return

        at = time.monotonic()
        rate = self.per_minute / 60
        capacity = float(self.per_minute)
        tokens, since = self._buckets.pop(caller, (capacity, at))
        tokens = min(tokens + (at - since) * rate, capacity)

        has_token = tokens >= 1
        left_tokens = tokens - 1 if has_token else tokens
        self._buckets[caller] = (left_tokens, at)
        if len(self._buckets) > MAXIMUM_CALLERS:
            self._buckets.popitem(last=False)

        if not has_token:
            detail = f"This caller has {self._excess.format(self.per_minute)} a minute"
            raise RateLimited(detail, seconds=(1 - tokens) / rate)


class SharedCall(Generic[T]):
    """A call that is in progress at most once: all callers share its result.

    So a database or a disk that does not respond gets no additional load. A call that exceeds the
    limit continues; until it ends, there is no result.

    Args:
        call: the function to call, which raises no exception.
        seconds: the limit.
    """

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._task: asyncio.Task[T] | None = None
        self._late_at = 0.0

    async def get_result(self) -> T | None:
        """Return the result; None if it is not there within the limit."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            # An empty context: several requests wait for the call, so its log lines name none.
            self._task = loop.create_task(self._call(), context=Context())
            self._late_at = loop.time() + self._seconds

        # A later caller may begin the next call during the wait.
        task = self._task
        await asyncio.wait([task], timeout=max(self._late_at - loop.time(), 0))
        if not task.done() or task.cancelled():
            return None
        return task.result()

    async def close(self) -> None:
        """Cancel a call in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


async def probe_databases(databases: Databases) -> bool:
    """Return True if all databases respond."""

    async def is_responding(database_id: str) -> bool:
        try:
            database = databases[database_id]
            await database.read(probe())
        except errors.AgentctlError:
            return False
        return not database.write_failed

    return all(await asyncio.gather(*map(is_responding, databases)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting(ReadHosting):
    """The objects that the operations of every principal share."""

    engine: Engine
    canceller: Canceller
    changes: DatabaseChanges
    monitor: WorkerMonitor
    account_tokens: AccountTokens
    deliveries: Deliveries

    readiness: SharedCall[bool]
    """Returns True if all databases respond."""

    disks: SharedCall[list[Finding]]
    """Returns the findings about free space."""

    versions: StoredVersions
    prices: Prices
    gate: Gate
    request_limit: RateLimiter
    run_limit: RateLimiter
    sums: UsageSums
    uploads: Uploads
    jobs: Jobs

    background: Tasks
    """Tasks that end with the service and that no one waits for."""

    verifier: Callable[[], Verifier]
    """Returns the verifier of the configuration.

    The first call creates it and raises InvalidKey if its keys are rejected.
    """

    statement_key: Callable[[], StatementKey | None]
    """Returns the key of `[audit] key_file`, or None without one.

    The first call raises InvalidKey if it cannot be used.
    """
