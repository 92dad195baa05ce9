"""Durable agents under kills, a short form of `python -m tests.lab calls`."""

from __future__ import annotations

import os

from tests.lab.durable_calls import run_experiment

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

KILLS = 1_000 if LONG else 4


async def test_no_finished_call_is_repeated_and_no_run_is_lost() -> None:
    figures = await run_experiment(
        "sqlite", 6, kills=KILLS, pause=0.7, call_seconds=0.2, paused=1, library=LONG
    )
    assert not figures.violations, figures
    assert sum(figures.kills.values()) == KILLS
    assert max(figures.attempts) > 1
