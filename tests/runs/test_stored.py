"""The reads of stored events that followers of a process share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentctl import errors
from agentctl.runs.log import hub as stored_module
from agentctl.runs.log.hub import StateReads, StoredEvents
from agentctl.runs.workers.recovery import recover_runs
from agentctl.store.database import Database
from agentctl.store.repositories.events import PART_BYTES, EventRow, StoredPart
from agentctl.store.repositories.sessions import delete
from agentctl.store.visibility import EVERYONE, Visibility
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.runs.shared_databases import create_live_run, store_events
from tests.service.callers import open_service


def list_first(part: StoredPart) -> list[int]:
    return [batch.first_seq for batch in part.batches]


class CountedReads:
    """The reads of a database; `failures` of them fail."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.failures = 0
        self._read = database.read
        monkeypatch.setattr(database, "read", self.read)

    async def read(self, work: Any, **options: Any) -> Any:
        self.count += 1
        if self.failures:
            self.failures -= 1
            raise errors.Unavailable("The database is busy")
        return await self._read(work, **options)


async def test_reads_are_shared_and_state_is_read_for_each_request(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        seq = 0
        run = await create_live_run(database, "dead", component_id="echo")
        for _ in range(10):
            seq = await store_events(database, run, "one ", "two", seq=seq)
        reads = CountedReads(database, monkeypatch)
        stored = StoredEvents()

        async def read(position: int) -> tuple[StoredPart, bool]:
            return await stored.read(database, "r1", position)

        # What begins later lacks the events of one that has less.
        assert list_first((await read(14))[0]) == [15, 18, 21, 24, 27]
        many = await asyncio.gather(*(read(position) for position in (-1, 4, -1, 20, 3)))
        assert {part.batches[0].first_seq for part, _ in many} <= {0, 15}
        assert all(list_first(part)[-1] == 27 for part, _ in many)
        assert reads.count == 2
        part, is_fresh = await read(5)
        assert (part.newest, is_fresh, reads.count) == (29, False, 2)

        # Followers that have everything share a read that begins after their request.
        together = await asyncio.gather(*(read(29) for _ in range(5)))
        assert [(part.status, part.batches, new) for part, new in together] == [
            ("RUNNING", [], True)
        ] * 5
        assert reads.count == 3
        await recover_runs(database, "dead")
        before = reads.count
        part, is_fresh = await read(29)
        assert (part.status, len(part.batches), is_fresh, reads.count) == (
            "ERROR",
            1,
            True,
            before + 1,
        )

        reads.failures = 1
        results = await asyncio.gather(read(2**40), read(2**40), return_exceptions=True)
        assert [type(result) for result in results] == [errors.Unavailable] * 2
        await database.write(delete("s1"))
        assert (await read(2**40))[0].status is None


async def test_size_of_reads_and_of_what_is_kept_is_bounded(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_module, "KEPT_SECONDS", 0.2)
    monkeypatch.setattr(stored_module, "PART_KEPT_BYTES", 2 * PART_BYTES)
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        seq = 0
        run = await create_live_run(database, "dead", component_id="echo")
        sizes = [*[20_000] * 10, 3 * PART_BYTES, 10]
        for size in sizes:
            seq = await store_events(database, run, "x" * size, seq=seq)
        stored = StoredEvents()
        position = -1
        found = list[list[int]]()
        while position < seq - 1:
            part, _ = await stored.read(database, "r1", position)
            found.append(list_first(part))
            position = part.batches[-1].last_seq
            assert stored.size <= 2 * PART_BYTES or len(part.batches) == 1
        assert found == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18], [20], [22]]
        await wait_until(lambda: stored.size == 0)


async def test_readers_that_wait_for_a_connection_share_a_read_of_the_state(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        await create_live_run(database, "dead", component_id="echo")
        reads = CountedReads(database, monkeypatch)
        states = StateReads()

        found = await asyncio.gather(*(states.read(database, "r1", EVERYONE) for _ in range(5)))
        assert [state is not None and state.status for state in found] == ["RUNNING"] * 5
        assert reads.count == 1
        nobody = Visibility(everyone=False, user_id="other")
        assert await asyncio.gather(
            states.read(database, "r1", nobody), states.read(database, "r1", EVERYONE)
        ) == [None, found[0]]
        assert reads.count == 3

        reads.failures = 1
        failed = [states.read(database, "r1", EVERYONE) for _ in range(2)]
        results = await asyncio.gather(*failed, return_exceptions=True)
        assert [type(result) for result in results] == [errors.Unavailable] * 2
        await recover_runs(database, "dead")
        state = await states.read(database, "r1", EVERYONE)
        assert state is not None
        assert state.status == "ERROR"


async def test_decoded_batches_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_module, "DECODED_KEPT_BYTES", 5_000)
    stored = StoredEvents()
    rows = [
        EventRow("r1", number, number, f"RunContent {'x' * 1_000}\n", "s1") for number in range(9)
    ]
    first = stored.decode(rows[0])
    assert stored.decode(replace(rows[0], session_id="s1")) is first
    for row in rows[1:]:
        assert [event.seq for event in stored.decode(row)] == [row.first_seq]
    assert stored.decode(rows[-1]) is stored.decode(rows[-1])
    assert stored.decode(rows[0]) is not first
