"""Cleanup of data with a limited lifetime."""

from __future__ import annotations

import os
import time

from agentctl.records.times import now
from agentctl.runs.jobs.cleanup import delete_expired
from agentctl.runs.workers.liveness import WorkerLock
from agentctl.runs.workers.worker import Worker
from agentctl.store.database import Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import events, idempotency, runs
from tests.kit.rows import an_end
from tests.runs.shared_databases import SharedDatabases, create_live_run, store_events

HOUR = 3_600_000_000


async def create_ended_run(databases: Databases, database: str, run_id: str, hours: int) -> None:
    """Create a run with events that ended some hours ago; its id sorts like that of an old run."""
    place = databases[database]
    run = await create_live_run(place, "w1", run_id)
    await store_events(place, run, "hello")
    await place.write(runs.finish(an_end(run_id, finished_at=now() - hours * HOUR)))


async def has_events(databases: Databases, database: str, run_id: str) -> bool:
    return await databases[database].read(events.get_last_seq(run_id)) >= 0


async def test_events_are_deleted_a_day_after_the_end(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        for database in ("main", "second"):
            await create_ended_run(databases, database, "0-old", 25)
            await create_ended_run(databases, database, "0-new", 23)
            run = await create_live_run(databases[database], "w1", "0-live")
            await store_events(databases[database], run, "hello")
        await delete_expired(databases)
        for database in ("main", "second"):
            kept = [
                name
                for name in ("0-old", "0-new", "0-live")
                if await has_events(databases, database, name)
            ]
            assert kept == ["0-new", "0-live"]


async def test_idempotency_keys_are_deleted_after_a_day(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        for name, hours in (("old", 25), ("new", 23)):
            at = now() - hours * HOUR
            assert await main.write(idempotency.claim_key("ann", name, "hash", name, at)) is None
        await delete_expired(databases)
        # Relative to the time of the claims both keys are still valid.
        then = now() - 20 * HOUR
        assert (
            await main.write(idempotency.claim_key("ann", "old", "hash", "another", then)) is None
        )
        claimed = await main.write(idempotency.claim_key("ann", "new", "hash", "another", then))
        assert claimed is not None
        assert claimed.run_id == "new"


async def test_cleanup_deletes_more_than_one_unit(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1", "0-r1")
        await main.write(many_events(run.run_id, 1200))
        await main.write(runs.finish(an_end(run.run_id, finished_at=now() - 25 * HOUR)))
        await delete_expired(databases)
        assert not await has_events(databases, "main", run.run_id)


@unit
def many_events(run_id: str, count: int) -> Steps[None]:
    for seq in range(count):
        assert (yield from events.append_batch(run_id, 1, seq, seq, "RunContent {}\n"))


async def test_stale_lock_files_are_removed(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        folder = databases.system.lock_folder
        WorkerLock.acquire(folder, "stray").release()
        os.utime(folder / "stray.lock", times=(time.time() - 3600,) * 2)
        worker = Worker(databases)
        await worker.register()
        await delete_expired(databases)
        assert shared.lock_names == [f"{worker.id}.lock"]
        await worker.unregister()
