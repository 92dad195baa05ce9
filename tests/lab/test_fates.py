"""Each message to a run has one fate, a short form of `python -m tests.lab fates`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.lab.fates import COMPONENTS, send_messages
from tests.runs.components import collect_garbage

__all__ = ["collect_garbage"]

MESSAGES = 60

SAMPLE = [place for place in COMPONENTS if place != ("agent", "runner")]
"""The import of openai-agents takes longer than the test, and its runs take no messages."""


# A killed process leaves coroutines and generators of the libraries that nothing closes.
@pytest.mark.usefixtures("collect_garbage")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_each_message_has_one_fate(tmp_path: Path) -> None:
    experiment = await send_messages(tmp_path, MESSAGES, seed=1, components=SAMPLE)
    assert not experiment.violations
    fates = sum(experiment.fates.values(), Counter[str]())
    for fate in ("delivered", "next_run", "refused"):
        assert fates[fate] > 0, experiment.fates
    graphs = experiment.fates["graph"] + experiment.fates["durable-graph"]
    assert graphs["delivered"] > 0, experiment.fates
