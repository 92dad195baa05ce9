"""Retries of model calls next to those of tenacity and of the openai package.

`python -m tests.benchmarks.reasons.retries` prints the CPU microseconds of a call that succeeds at
its third attempt, without its waits, and how many of 1,000 calls that were refused together, with
`Retry-After: 1`, return within the same 50 milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any
from unittest.mock import patch

import httpx2
from openai import AsyncOpenAI
from openai._models import FinalRequestOptions

from agentctl.runtime.models import attempts
from agentctl.runtime.models.calls import ModelFailure
from tests.runtime.test_retry_differences import build_attempts, call, call_with_tenacity

ROUNDS = 9
CALLS = 2_000
REFUSED = 1_000
FAILURES = [ModelFailure("MODEL_UNAVAILABLE", "no"), ModelFailure("MODEL_UNAVAILABLE", "no"), None]


async def skip(_: float) -> None:
    """Take no time."""


async def measure(run: Callable[[], Awaitable[Any]]) -> float:
    """Return the CPU microseconds of a call."""
    start = time.process_time()
    for _ in range(CALLS):
        await run()
    return (time.process_time() - start) * 1e6 / CALLS


def count_together(waits: list[float]) -> int:
    """Return the largest number of waits that end in the same 50 milliseconds."""
    return max(Counter(int(wait / 0.05) for wait in waits).values())


async def main() -> None:
    """Print a line for each comparison."""
    own = build_attempts(2)
    with patch.object(attempts.asyncio, "sleep", skip):
        rounds = [
            (
                await measure(lambda: call(own, FAILURES, skip)),
                await measure(lambda: call_with_tenacity(2, 60.0, FAILURES, skip, lambda *_: 0.1)),
            )
            for _ in range(ROUNDS)
        ]
    ours, theirs = (median(values) for values in zip(*rounds, strict=True))
    print(f"a call with two retries: own {ours:.0f} us, tenacity {theirs:.0f} us")
    refusal = ModelFailure("MODEL_UNAVAILABLE", "no", retry_after=1.0)
    own.begin_call()
    own._failed = 1
    waits = [own._wait_seconds(refusal) or 0.0 for _ in range(REFUSED)]
    client = AsyncOpenAI(api_key="x")
    options = FinalRequestOptions(method="post", url="/")
    header = httpx2.Headers({"retry-after": "1"})
    library = [client._calculate_retry_timeout(2, options, header) for _ in range(REFUSED)]
    print(f"together, of {REFUSED}: own {count_together(waits)}, openai {count_together(library)}")


if __name__ == "__main__":
    asyncio.run(main())
