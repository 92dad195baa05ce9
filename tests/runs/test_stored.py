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
from agentctl.service.service import Service
from agentctl.store.database import Database
from agentctl.store.repositories.events import PART_BYTES, EventRow, StoredPart
from agentctl.store.repositories.sessions import delete
from agentctl.store.visibility import EVERYONE, Visibility
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import open_service
from tests.runs.shared_databases import create_live_run, store_events


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


class SharedReads:
    """A lost run with ten batches of three events, and what its followers read."""

    def __init__(self, database: Database, reads: CountedReads) -> None:
        self.database = database
        self.reads = reads
        self._stored = StoredEvents()

    @classmethod
    async def create(cls, service: Service, monkeypatch: pytest.MonkeyPatch) -> SharedReads:
        database = service.hosting.databases["main"]
        run = await create_live_run(database, "dead", component_id="echo")
        seq = 0
        for _ in range(10):
            seq = await store_events(database, run, "one ", "two", seq=seq)
        return cls(database, CountedReads(database, monkeypatch))

    async def read(self, position: int) -> tuple[StoredPart, bool]:
        """Return what is stored after an event, and whether the state of the run is new."""
        return await self._stored.read(self.database, "r1", position)


async def test_followers_of_stored_events_share_reads(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        shared = await SharedReads.create(service, monkeypatch)

        # What begins later lacks the events of one that has less.
        assert list_first((await shared.read(14))[0]) == [15, 18, 21, 24, 27]
        several = await asyncio.gather(*(shared.read(seq) for seq in (-1, 4, -1, 20, 3)))
        assert {part.batches[0].first_seq for part, _ in several} <= {0, 15}
        assert all(list_first(part)[-1] == 27 for part, _ in several)
        assert shared.reads.count == 2

        part, is_fresh = await shared.read(5)
        assert (part.newest, is_fresh, shared.reads.count) == (29, False, 2)


async def test_followers_that_have_all_events_share_a_new_read(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read begins after their requests, so it also has the state of the run."""
    async with open_service(deployment) as service:
        shared = await SharedReads.create(service, monkeypatch)
        await shared.read(14)
        before = shared.reads.count

        together = await asyncio.gather(*(shared.read(29) for _ in range(5)))
        assert shared.reads.count == before + 1
        states = [(part.status, part.batches, is_fresh) for part, is_fresh in together]
        assert states == [("RUNNING", [], True)] * 5

        await recover_runs(shared.database, "dead")
        before = shared.reads.count
        part, is_fresh = await shared.read(29)
        assert shared.reads.count == before + 1
        assert (part.status, len(part.batches), is_fresh) == ("ERROR", 1, True)


async def test_failed_read_is_not_kept(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        shared = await SharedReads.create(service, monkeypatch)
        shared.reads.failures = 1

        results = await asyncio.gather(
            shared.read(2**40), shared.read(2**40), return_exceptions=True
        )
        assert [type(result) for result in results] == [errors.Unavailable] * 2

        await shared.database.write(delete("s1"))
        assert (await shared.read(2**40))[0].status is None


async def test_size_of_reads_and_of_what_is_kept_is_bounded(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_module, "KEPT_SECONDS", 0.2)
    monkeypatch.setattr(stored_module, "PART_KEPT_BYTES", 2 * PART_BYTES)
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        run = await create_live_run(database, "dead", component_id="echo")
        seq = 0
        for size in (*[20_000] * 10, 3 * PART_BYTES, 10):
            seq = await store_events(database, run, "x" * size, seq=seq)
        stored = StoredEvents()

        position = -1
        parts = list[list[int]]()
        while position < seq - 1:
            part, _ = await stored.read(database, "r1", position)
            parts.append(list_first(part))
            position = part.batches[-1].last_seq
            # A single batch is kept, however large it is.
            assert stored.size <= 2 * PART_BYTES or len(part.batches) == 1

        assert parts == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18], [20], [22]]
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

        # Callers that see different runs share nothing.
        nobody = Visibility(everyone=False, user_id="other")
        hidden, visible = await asyncio.gather(
            states.read(database, "r1", nobody), states.read(database, "r1", EVERYONE)
        )
        assert (hidden, visible) == (None, found[0])
        assert reads.count == 3

        # A failure is that of all who wait for the read, and of nobody later.
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
