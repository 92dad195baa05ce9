"""Short experiments: some seconds with crashes of the database and killed processes."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.chaos.experiment import run_chaos
from tests.chaos.faults import BACK_SECONDS
from tests.chaos.report import format_report
from tests.poolers.pgbouncer import MISSING, find_pgbouncer

SECONDS = 10.0
CLIENTS = 16
PAUSE = 1.5

LONG_SECONDS = 30.0


def test_acknowledged_work_survives_crashes_of_the_database() -> None:
    result = asyncio.run(run_chaos("postgresql", SECONDS, CLIENTS, pause=PAUSE, durable=False))
    print(format_report(result))
    assert not result.ledger.violations
    assert result.tracebacks == 0
    assert len(result.ledger.acknowledged) > CLIENTS
    crashes = [outage for outage in result.outages if outage.fault.startswith("database")]
    assert crashes
    assert max(outage.back for outage in crashes) <= BACK_SECONDS


@pytest.mark.skipif(find_pgbouncer() is None, reason=MISSING)
@pytest.mark.skipif(
    os.environ.get("AGENTCTL_TEST_LONG") != "1", reason="the long mode: AGENTCTL_TEST_LONG=1"
)
def test_acknowledged_work_survives_crashes_with_pgbouncer() -> None:
    result = asyncio.run(run_chaos("pgbouncer", LONG_SECONDS, CLIENTS, pause=PAUSE, durable=False))
    print(format_report(result))
    assert not result.ledger.violations
    assert result.tracebacks == 0
    assert len(result.ledger.acknowledged) > CLIENTS
    assert {outage.fault.split()[0] for outage in result.outages} >= {"database", "pooler"}


@pytest.mark.skipif(
    os.environ.get("AGENTCTL_TEST_LONG") != "1", reason="the long mode: AGENTCTL_TEST_LONG=1"
)
def test_acknowledged_work_survives_crashes_with_the_last_release() -> None:
    """One of the two servers is of the last release."""
    result = asyncio.run(run_chaos("mixed", LONG_SECONDS, CLIENTS, pause=PAUSE, durable=False))
    print(format_report(result))
    assert not result.ledger.violations
    assert result.tracebacks == 0
    assert len(result.ledger.acknowledged) > CLIENTS


def test_acknowledged_work_survives_killed_workers() -> None:
    result = asyncio.run(run_chaos("sqlite", SECONDS, CLIENTS, pause=PAUSE))
    print(format_report(result))
    assert not result.ledger.violations
    assert result.tracebacks == 0
    assert len(result.ledger.acknowledged) > CLIENTS
    assert any("killed" in outage.fault for outage in result.outages)
