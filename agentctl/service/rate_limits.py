"""Rate limits of callers at this process (docs/budgets.md "Rate limits").

A limit is a bucket of tokens for each caller: it holds as many as a minute allows, and is filled
evenly. The buckets are in memory, so that a refused request costs no database anything.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from agentctl.config.budgets import RateLimits
from agentctl.errors import RateLimited

MAXIMUM_CALLERS = 10_000
"""Callers whose buckets are kept, the latest ones. A caller without a bucket has a full one."""


class RateLimiter:
    """The limits of the table `[rate_limits]`."""

    def __init__(self, settings: RateLimits) -> None:
        self._requests = Buckets(settings.requests_per_minute)
        self._runs = Buckets(settings.runs_per_minute)

    @property
    def limits_runs(self) -> bool:
        return bool(self._runs.per_minute)

    def take_request(self, caller: str) -> None:
        """Count a request of a caller.

        Raises:
            RateLimited: the caller has sent too many.
        """
        _take(self._requests, caller, "sent more than {:,} requests")

    def take_run(self, caller: str) -> None:
        """Count a run that a caller starts.

        Raises:
            RateLimited: the caller has started too many.
        """
        _take(self._runs, caller, "started more than {:,} runs")


class Buckets:
    """The buckets of one limit.

    Args:
        per_minute: the size of a bucket; 0 for no limit.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        # The content of the bucket of a caller at a time; the latest callers last.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take one token of a caller; return 0, or the seconds until there is one."""
        if not self.per_minute:
            return 0
        at, rate = time.monotonic(), self.per_minute / 60
        left, since = self._buckets.pop(caller, (float(self.per_minute), at))
        left = min(left + (at - since) * rate, float(self.per_minute))
        taken = left >= 1
        self._buckets[caller] = (left - taken, at)
        if len(self._buckets) > MAXIMUM_CALLERS:
            self._buckets.popitem(last=False)
        return 0 if taken else (1 - left) / rate


def _take(buckets: Buckets, caller: str, excess: str) -> None:
    if seconds := buckets.take(caller):
        detail = f"This caller has {excess.format(buckets.per_minute)} a minute"
        raise RateLimited(detail, seconds=seconds)
