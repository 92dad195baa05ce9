"""Short experiments: some seconds with crashes of the database and killed processes."""

from __future__ import annotations

import os

import pytest

from tests.lab.crashes import BACK_SECONDS, Result, crash_often, format_result
from tests.poolers.pgbouncer import MISSING, find_pgbouncer

SECONDS = 10.0
LONG_SECONDS = 30.0
CLIENTS = 16
PAUSE = 1.5

in_long_mode = pytest.mark.skipif(
    os.environ.get("AGENTCTL_TEST_LONG") != "1", reason="the long mode: AGENTCTL_TEST_LONG=1"
)


async def crash(deployment: str, seconds: float = SECONDS) -> Result:
    """Run an experiment; nothing may be violated."""
    result = await crash_often(deployment, seconds, CLIENTS, pause=PAUSE, is_flushed=False)
    assert not result.received.violations, format_result(result)
    assert len(result.received.acknowledged) > CLIENTS
    return result


async def test_acknowledged_work_survives_crashes_of_the_database() -> None:
    result = await crash("postgresql")
    crashes = [each.back for each in result.outages if each.disturbance == "crash of PostgreSQL"]
    assert crashes
    assert max(crashes) <= BACK_SECONDS


@pytest.mark.skipif(find_pgbouncer() is None, reason=MISSING)
@in_long_mode
async def test_acknowledged_work_survives_crashes_with_pgbouncer() -> None:
    result = await crash("pgbouncer", LONG_SECONDS)
    names = {outage.disturbance for outage in result.outages}
    assert names >= {"crash of PostgreSQL", "pooler killed"}


@in_long_mode
async def test_acknowledged_work_survives_crashes_with_the_last_release() -> None:
    """One of the two servers is of the last release."""
    await crash("mixed", LONG_SECONDS)


async def test_acknowledged_work_survives_killed_workers() -> None:
    result = await crash("sqlite")
    assert any("killed" in outage.disturbance for outage in result.outages)
