"""The short form: some seconds with a crash of the database and a killed server in them."""

from __future__ import annotations

import asyncio

from tests.chaos.play import run_chaos
from tests.chaos.report import format_report
from tests.chaos.trouble import BACK_SECONDS

SECONDS, CLIENTS, PAUSE = 10.0, 16, 1.5


def test_what_was_acknowledged_is_true_after_crashes() -> None:
    result = asyncio.run(run_chaos(SECONDS, CLIENTS, pause=PAUSE, durable=False))
    print(format_report(result))
    assert not result.ledger.wrong
    assert result.tracebacks == 0
    assert len(result.ledger.acknowledged) > CLIENTS
    databases = [outage for outage in result.outages if outage.what.startswith("database")]
    assert databases
    assert max(outage.back for outage in databases) <= BACK_SECONDS
