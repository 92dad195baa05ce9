"""A run that ends takes the members with it whose pauses are stored at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentctl.interface.requests import RunRequest
from agentctl.records.text import new_id
from agentctl.runs.states import Ending
from agentctl.store.database import Database, Work
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.service import user
from tests.runs.unlucky_runs import PLAN, UnluckyRuns


class LatePauses:
    """Holds the result of each pause that the database has committed back until `release`."""

    def __init__(self, database: Database) -> None:
        self.held = 0
        self._is_released = asyncio.Event()
        self._write = database.write
        changed: Any = database
        changed.write = self._hold_pauses

    def release(self) -> None:
        self._is_released.set()

    async def _hold_pauses(self, work: Work[Any], **options: Any) -> Any:
        result = await self._write(work, **options)
        if work.func.__name__ == "write_pause":
            self.held += 1
            await self._is_released.wait()
        return result


@pytest.mark.parametrize("kind", ["team", "workflow"])
async def test_cancel_ends_a_member_whose_pause_is_being_stored(
    tmp_path: Path, model_endpoint: ModelEndpoint, kind: Any
) -> None:
    session_id = new_id()
    async with UnluckyRuns.open(tmp_path, model_endpoint.base_url, kind) as runs:
        pauses = LatePauses(runs.database)
        request = RunRequest(PLAN, session_id=session_id)
        start = asyncio.create_task(user(runs.service).runs.create(kind, kind, request))

        await wait_until(lambda: pauses.held)
        [root] = runs.service.hosting.engine.root_runs()
        root.stop(Ending.cancelled("boss", None))
        await start
        pauses.release()

        rows = await runs.list_runs(session_id)
        assert [row.status for row in rows] == ["CANCELLED", "CANCELLED"]
