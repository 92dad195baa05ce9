"""Members whose root run has ended or belongs to another worker, and inconsistent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from agentctl import errors
from agentctl.config.settings import Approvals
from agentctl.interface.requests import RunRequest
from agentctl.records.runs import RunState
from agentctl.runs.engine import cancel as cancel_module
from agentctl.runs.engine.cancel import OWNER_CHECK_SECONDS, READ_SECONDS, Canceller
from agentctl.runs.engine.changes import ChangeTracker
from agentctl.runs.life import finish
from agentctl.runs.life.finish import store_end, store_hand_over, store_pause
from agentctl.runs.life.legs import claim_member
from agentctl.runs.life.live import LiveRun
from agentctl.runs.states import Ending, HandOver, LegEnd, Pause
from agentctl.runs.workers.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.workers.recovery import settle_inconsistent
from agentctl.runtime.pauses import Ask
from agentctl.store.database import Database, Sql, Work
from agentctl.store.repositories import approvals, integrity, run_reads, runs, workers
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import user
from tests.runs.bench import OWNER, Bench, open_bench

DECIDE = Sql("UPDATE approvals SET status = 'approved', decided_at = 5 WHERE run_id = :run_id")
RENAME = Sql("UPDATE sessions SET session_name = :name")
TAKE = Sql("UPDATE runs SET owner = 'other' WHERE run_id = :run_id")


async def pause(run: LiveRun, on_unavailable: Callable[[], None] = lambda: None) -> LegEnd:
    asked = Pause([Ask("approval", "call", "pay", {"amount": 1})], {})
    return await store_pause(run, asked, Approvals(), on_unavailable)


async def check(bench: Bench) -> None:
    """Check that no row contradicts another one."""
    assert await bench.database.read(integrity.find_inconsistent(10, 2**62)) == []


async def test_member_that_pauses_after_the_end_of_its_root_is_cancelled(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        await bench.end(bench.root)
        ending = await pause(member)
        assert isinstance(ending, Ending)
        await bench.end(member, ending)
        assert (await bench.read("member")).status == "CANCELLED"
        assert await bench.database.read(approvals.list_of_run("member")) == []
        await check(bench)


async def test_end_of_the_root_cancels_a_member_that_has_paused(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        assert isinstance(await pause(member), Pause)
        await bench.end(bench.root)
        assert (await bench.read("member")).status == "CANCELLED"
        await check(bench)


@pytest.mark.parametrize("change", ["nothing", "owner", "end", "cancel"])
async def test_member_is_claimed_for_a_leg_of_its_root_only(
    deployment: Deployment, change: str
) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        await pause(member)
        database = bench.database
        assert await database.write(claim_member("member", OWNER, None, None)) is None, (
            "it is not decided"
        )
        await database.write(DECIDE.execute(run_id="member"))
        if change == "owner":
            await database.write(TAKE.execute(run_id="root"))
        elif change == "end":
            await bench.end(bench.root)
        elif change == "cancel":
            await database.write(runs.request_cancel("root", 9, "ann", None))
        claimed = await database.write(claim_member("member", OWNER, None, None))
        assert (claimed is not None) == (change == "nothing")
        states = {"nothing": "RUNNING", "end": "CANCELLED"}
        assert (await bench.read("member")).status == states.get(change, "PAUSED")
        await check(bench)


async def test_end_of_an_interrupted_pause_closes_its_approvals(deployment: Deployment) -> None:
    """A tool that cancels all tasks interrupts the write of a pause, which may be committed."""
    async with open_bench(deployment, durable=False) as bench:
        assert isinstance(await pause(bench.root), Pause)
        await bench.end(bench.root, Ending.failed("INTERNAL", "interrupted"))
        (row,) = await bench.database.read(approvals.list_of_run("root"))
        assert (row.status, row.decided_by) == ("cancelled", "system")
        await check(bench)


async def test_end_that_another_process_has_stored_is_kept(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        end = (
            "UPDATE runs SET status = 'CANCELLED', cancel_requested_by = 'bob', finished_at = 6,"
            " cancel_reason = 'enough', cancel_requested_at = 5 WHERE run_id = 'root'"
        )
        await bench.database.write(Sql(end).execute())
        stored = await store_end(
            bench.root, Ending.completed(), lambda late: None, lambda: None, lambda: None
        )
        assert (stored.status, stored.actor) == ("CANCELLED", "bob")
        assert (stored.reason, stored.requested_at) == ("enough", 5)


def refuse_writes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, on_refusal: Callable[[], None]
) -> None:
    """Let the database refuse the next two writes."""
    write = bench.database.write
    left = 2

    async def refuse(work: Work[Any]) -> Any:
        nonlocal left
        if left > 0:
            left -= 1
            on_refusal()
            raise errors.Unavailable("no answer")
        return await write(work)

    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.0,))
    monkeypatch.setattr(bench.database, "write", refuse)


async def test_work_that_ends_before_its_run_is_stored_is_reported(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        loop = asyncio.get_running_loop()
        changes = list[str]()
        refusals = list[str]()
        short = loop.create_future()
        long = loop.create_future()
        unstopped = bench.root.transcript.unstopped
        unstopped.add(short, "short")
        unstopped.add(long, "long")
        refuse_writes(bench, monkeypatch, lambda: short.done() or short.set_result(None))
        await store_end(
            bench.root,
            Ending.completed(),
            lambda late: None,
            lambda: changes.append(",".join(unstopped.names)),
            lambda: refusals.append("end"),
        )
        # The row has both names: the caller replaces them.
        run = await bench.database.read(run_reads.get("root", EVERYONE))
        assert run is not None
        assert (run.holding, changes) == ('["short","long"]', ["long"])
        assert refusals == ["end", "end"]
        long.set_result(None)


async def test_refused_writes_of_a_pause_are_reported(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        refusals: list[str] = []
        refuse_writes(bench, monkeypatch, lambda: None)
        assert isinstance(await pause(bench.root, lambda: refusals.append("pause")), Pause)
        assert refusals == ["pause", "pause"]
        assert (await bench.read("root")).status == "PAUSED"


BROKEN = {
    "UPDATE runs SET owner = NULL WHERE run_id = 'root'": (
        {"it is RUNNING, but owner is not set"}, "ERROR"
    ),
    "UPDATE runs SET status = 'ERROR', finished_at = 5 WHERE run_id = 'root'": (
        {"it is open, but its parent has ended", "it has ended, but its checkpoint is kept"},
        "ERROR",
    ),
    "UPDATE approvals SET status = 'approved', decided_at = 5": (
        {"it is PAUSED, but nothing is left to decide"}, "PENDING"
    ),
    "UPDATE runs SET status = 'ERROR', finished_at = 6 WHERE run_id = 'root'": (
        {
            "it has ended, but an approval or an approved call of it is open",
            "it has ended, but its checkpoint is kept",
        },
        "ERROR",
    ),
    "DELETE FROM run_checkpoints": (
        {"it waits, but has no checkpoint from which it could go on"}, "ERROR"
    ),
}  # fmt: skip
"""Changes by another program: the problems that they are, and the status after the repair."""


@pytest.mark.parametrize("sql", BROKEN)
async def test_inconsistent_runs_are_found_and_settled(deployment: Deployment, sql: str) -> None:
    texts, status = BROKEN[sql]
    async with open_bench(deployment) as bench:
        if "finished_at = 5" in sql:
            await bench.start_member()
        elif "owner" not in sql:
            await pause(bench.root)
        await check(bench)
        await bench.database.write(Sql(sql).execute())
        found = await bench.database.read(integrity.find_inconsistent(10, 2**62))
        assert {each.text for each in found} == texts
        recent = await bench.database.read(integrity.find_inconsistent(10, 4))
        assert len(recent) == len(found) - ("finished_at = 5" in sql)
        for run_id in {each.run_id for each in found}:
            settle = settle_inconsistent(bench.database.outbox, run_id)
            assert await bench.database.write(settle)
        await check(bench)
        assert (await bench.read("root")).status == status
        again = settle_inconsistent(bench.database.outbox, "root")
        assert not await bench.database.write(again)


async def test_cancel_ends_the_run_of_a_dead_worker(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        hosting = bench.service.hosting
        lost: list[Any] = []
        hosting.monitor.on_lost_run = lost.append
        result = await hosting.canceller.cancel(
            bench.database, "root", actor="ann", reason="late", wait=3_600
        )
        assert (result.outcome, result.state.status) == ("stopped", "CANCELLED")
        assert result.state.cancel_requested_by == "ann"
        # The metrics count it.
        assert len(lost) == 1


async def give_to_live_worker(bench: Bench) -> None:
    await user(bench.service).runs.create("agent", "echo", RunRequest("the worker has a row now"))
    take = Sql("UPDATE runs SET owner = :owner WHERE run_id = 'root'")
    await bench.database.write(take.execute(owner=bench.service.hosting.engine.worker_id))


async def test_cancel_of_a_live_worker_waits_for_a_limited_time(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        await give_to_live_worker(bench)
        result = await bench.service.hosting.canceller.cancel(
            bench.database, "root", actor="ann", reason=None, wait=0.2
        )
        assert (result.outcome, result.state.status) == ("requested", "RUNNING")


async def test_cancel_of_a_silent_worker_leaves_open_whether_its_work_has_stopped(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        hosting = bench.service.hosting
        clock = 0.0
        monitor = WorkerMonitor(hosting.databases, clock=lambda: clock)
        silent = WorkerRow(OWNER, "far", "boot/1", 1, 1, beat=1, started_at=1)
        await bench.database.write(workers.register(silent))
        while await monitor.check_owner(OWNER) is None:
            clock += 4
            # The clock of a monitor advances with the writes to its database.
            await bench.database.write(RENAME.execute(name=str(clock)))
        assert await monitor.check_owner(OWNER) is WorkerDeath.NO_HEARTBEAT
        canceller = Canceller(hosting.engine, monitor, hosting.changes)
        result = await canceller.cancel(
            bench.database, "root", actor="ann", reason=None, wait=3_600
        )
        assert (result.outcome, result.state.status) == ("stopped", "CANCELLED")
        run = await bench.database.read(run_reads.get("root", EVERYONE))
        assert run is not None
        assert (run.finished_at is not None, run.stopped_at) == (True, None)


async def test_cancel_reads_the_run_of_a_live_worker_now_and_then(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_change = ChangeTracker.wait_for_change
    pauses = list[float]()

    async def record_pause(tracker: ChangeTracker, timeout: float) -> bool:
        pauses.append(timeout)
        return await wait_for_change(tracker, timeout)

    monkeypatch.setattr(ChangeTracker, "wait_for_change", record_pause)
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        await give_to_live_worker(bench)
        cancel = partial(
            bench.service.hosting.canceller.cancel, bench.database, "root", actor="ann", reason=None
        )
        assert (await cancel(wait=0)).outcome == "requested"
        assert pauses == []
        assert (await cancel(wait=0.05)).outcome == "requested"
        assert pauses
        assert all(0 < pause <= 0.05 for pause in pauses)
        pauses.clear()
        cancelling = asyncio.create_task(cancel(wait=3_600))
        await wait_until(lambda: pauses)
        cancelling.cancel()
        assert 0 < pauses[0] == READ_SECONDS < OWNER_CHECK_SECONDS


async def test_cancel_checks_the_worker_less_often_than_it_reads(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_module, "READ_SECONDS", 0.001)
    monkeypatch.setattr(cancel_module, "OWNER_CHECK_SECONDS", 1_000.0)
    monkeypatch.setattr(cancel_module, "EARLY_SECONDS", 1_000.0)
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        await give_to_live_worker(bench)
        hosting = bench.service.hosting
        checks = list[str | None]()
        reads = list[str]()
        check_owner = hosting.monitor.check_owner
        read_state = cancel_module._read_state

        async def count_check(owner: str | None) -> WorkerDeath | None:
            checks.append(owner)
            return await check_owner(owner)

        async def count_read(database: Database, run_id: str) -> RunState | None:
            reads.append(run_id)
            return await read_state(database, run_id)

        monkeypatch.setattr(hosting.monitor, "check_owner", count_check)
        monkeypatch.setattr(cancel_module, "_read_state", count_read)
        cancelling = asyncio.create_task(
            hosting.canceller.cancel(bench.database, "root", actor="ann", reason=None, wait=3_600)
        )
        await wait_until(lambda: len(reads) > 20)
        cancelling.cancel()
        assert len(checks) == 1


async def test_run_is_cancelled_when_its_caller_leaves(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            async with bench.service.hosting.canceller.cancelling_on_leave(
                bench.database, "root", "ann"
            ):
                raise asyncio.CancelledError
        state = await bench.read("root")
        assert (state.status, state.cancel_requested_by) == ("CANCELLED", "ann")


async def test_cancel_of_an_ended_run_has_its_further_writes(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        await bench.end(bench.root)
        canceller = bench.service.hosting.canceller
        mark = Sql("UPDATE runs SET request_id = :mark WHERE run_id = 'root'")
        for mark_text, known in (("read", None), ("known", await bench.read("root"))):
            result = await canceller.cancel(
                bench.database,
                "root",
                actor="ann",
                reason=None,
                wait=0,
                extra_write=partial(mark.execute, mark=mark_text),
                known_state=known,
            )
            assert (result.outcome, result.state.status) == ("already_final", "COMPLETED")
            marked = Sql("SELECT count(*) FROM runs WHERE request_id = :mark")
            assert await bench.database.read(marked.value(mark=mark_text)) == 1


async def test_cancel_stops_a_run_of_its_own_process_at_once(deployment: Deployment) -> None:
    """It does not wait until the watch for other cancels finds it; the first request counts."""
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        hosting = bench.service.hosting
        engine: Any = SimpleNamespace(find_run={"root": bench.root}.get)
        canceller = Canceller(engine, hosting.monitor, hosting.changes)
        await bench.database.write(runs.request_cancel("root", 2, "ann", "enough"))
        result = await canceller.cancel(
            bench.database, "root", actor="bob", reason="too late", wait=0
        )
        assert result.outcome == "requested"
        assert bench.root.requested_end == Ending.cancelled("ann", "enough")


@pytest.mark.parametrize("is_live", [False, True])
async def test_cancel_wakes_the_deliveries_if_it_ends_the_run(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    """The end of a run that waits for a worker is reported to the receivers of webhooks."""
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        if is_live:
            await give_to_live_worker(bench)
        else:
            await store_hand_over(bench.root, HandOver(), lambda: None)
            assert (await bench.read("root")).status == "PENDING"
        wakes: list[str] = []
        monkeypatch.setattr(bench.database.outbox, "wake", lambda: wakes.append("woken"))
        result = await bench.service.hosting.canceller.cancel(
            bench.database, "root", actor="ann", reason=None, wait=0
        )
        assert result.outcome == ("requested" if is_live else "stopped")
        assert wakes == ([] if is_live else ["woken"])


async def test_cancel_of_a_deleted_run_is_not_found(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        with pytest.raises(errors.NotFound, match="Run not found"):
            await bench.service.hosting.canceller.cancel(
                bench.database, "absent", actor="ann", reason=None, wait=0
            )
