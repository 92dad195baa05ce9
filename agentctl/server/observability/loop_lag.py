"""How late the event loop is: sampled while a server runs, told in the log when it is bad."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from agentctl.records.numbers import DurationHistogram

__all__ = ["LoopLag"]

SAMPLE_SECONDS = 0.25
WARNING_SECONDS = 1.0
"""A loop that was held up for longer is complained of."""

WARNING_INTERVAL_SECONDS = 60.0
"""After a complaint there is none for so long."""

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_log = logging.getLogger("agentctl.server")


class LoopLag:
    """Samples how much later than asked for the loop calls back.

    Attributes:
        samples: what was found, in seconds.
    """

    def __init__(self) -> None:
        self.samples = DurationHistogram(LAG_BUCKETS)
        self._quiet_until = float("-inf")
        self._longest = 0.0

    @contextlib.contextmanager
    def sample_in_background(self) -> Iterator[None]:
        """Sample while the block lasts."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def sample(due: float) -> None:
            nonlocal timer
            now = loop.time()
            self._found(max(now - due, 0.0), now)
            timer = loop.call_later(SAMPLE_SECONDS, sample, now + SAMPLE_SECONDS)

        timer = loop.call_later(SAMPLE_SECONDS, sample, loop.time() + SAMPLE_SECONDS)
        try:
            yield
        finally:
            timer.cancel()

    def _found(self, lag: float, now: float) -> None:
        self.samples.add(lag)
        if lag <= WARNING_SECONDS and not self._longest:
            return
        self._longest = max(self._longest, lag if lag > WARNING_SECONDS else 0.0)
        if now < self._quiet_until:
            return
        self._quiet_until = now + WARNING_INTERVAL_SECONDS
        longest, self._longest = self._longest, 0.0
        _log.warning(
            "the event loop was held up for %.1f s: everything in this process waited, as for a"
            " tool that blocks",
            longest,
        )
