"""No call begins after the return of a halt, on two servers and on workers of one file."""

from __future__ import annotations

import pytest

from tests.chaos.cluster import Engine
from tests.halts.paths import PATHS
from tests.halts.world import open_world

LANES = 6


@pytest.mark.parametrize("engine", ["postgresql", "sqlite"])
@pytest.mark.parametrize("kills", [False, True])
async def test_no_call_begins_after_a_halt(engine: Engine, kills: bool) -> None:
    async with open_world(engine, LANES) as world:
        report = await world.halt_often(5 * len(PATHS), LANES, kills=kills)
    assert report.late == [], report.describe()
    assert not report.problems, report.describe()
    assert {*report.halts} == {*PATHS}
