"""A short queue on two server processes: order, fairness, and each run once."""

from __future__ import annotations

import pytest

from bench.queue_servers import check, measure, serve


def test_queue_of_two_servers_keeps_order_and_starves_no_session() -> None:
    row = measure(10, 3, servers=2, slots=2, seconds=60)
    assert "30 of 10 sessions" in row


def test_ledger_shows_runs_that_begin_out_of_order() -> None:
    with serve(1, 20, "allow") as running:
        running.fill(2, 3)
        running.drain(6, 60)
        with pytest.raises(AssertionError, match="begun"):
            check(running.read_ledger(), 2, 3, 20)
