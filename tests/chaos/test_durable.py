"""Durable agents under kills and restarts, a short form of `python -m tests.chaos.durable`."""

from __future__ import annotations

import asyncio
import os

from tests.chaos.durable import run_experiment

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

KILLS = 1_000 if LONG else 4


def test_no_finished_call_is_repeated_and_no_run_is_lost() -> None:
    figures = asyncio.run(
        run_experiment(
            "sqlite", 6, kills=KILLS, pause=0.7, call_seconds=0.2, paused=1, library=LONG
        )
    )
    print(figures)
    assert figures.is_right
    assert figures.tracebacks == 0
    assert sum(figures.kills.values()) == KILLS
    assert max(figures.attempts) > 1
