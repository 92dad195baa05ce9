"""A run that waits costs the same however many runs wait after it."""

from __future__ import annotations

import asyncio

from bench.queue_costs import measure


def test_claim_reads_as_much_in_a_long_queue_as_in_a_short_one() -> None:
    short, long = (
        asyncio.run(measure("sqlite", length, in_one=False, runs=4)) for length in (5, 400)
    )
    # A heartbeat may fall into one of the two.
    assert abs(long.statements - short.statements) <= 5, (short, long)
    assert long.rows <= short.rows + 10, (short, long)
