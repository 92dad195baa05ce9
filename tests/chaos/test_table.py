"""The table of faults: two short ones, and what its ledger reports."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.chaos.table import FAULTS, Outcome, make_table

RATE = 20.0
SECONDS = 3.0


def test_faults_lose_no_acknowledged_start_and_execute_no_refused_one() -> None:
    names = [name for name in FAULTS if "crash" in name or "`runs`" in name]
    found = asyncio.run(make_table(names, RATE, SECONDS))
    assert list(found) == names
    for outcome in found.values():
        assert outcome.select("acknowledged")
        assert outcome.select("refused")
        assert (outcome.missing, outcome.wrongly_executed, outcome.other) == ([], [], [])


def test_ledger_reports_missing_refused_and_repeated_starts() -> None:
    answers = {"a": "acknowledged", "b": "acknowledged", "c": "refused", "d": "refused"}
    stored = dict.fromkeys(("a", "c"), "COMPLETED")
    outcome = Outcome(answers, Counter({"a": 2, "d": 1}), stored)
    assert outcome.missing == ["b"]
    assert outcome.wrongly_executed == ["c", "d", "a"]
