"""Runs that wait end in one transaction, with the members and the approvals below them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.config.settings import Approvals, Settings
from agentctl.config.webhooks import Webhook
from agentctl.records.items import CANCELLED_RESULT
from agentctl.records.runs import RunRow
from agentctl.runs.desk.waiting import cancel_run, end_overdue_run, release_if_decided
from agentctl.runs.life.finish import store_pause
from agentctl.runs.life.legs import claim_leg
from agentctl.runs.life.live import LiveRun
from agentctl.runs.log.event_rows import LOST_SEQ_STEP
from agentctl.runs.states import Pause
from agentctl.runtime.pauses import Ask
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, queue, run_reads, runs
from agentctl.store.visibility import EVERYONE
from tests.kit.deployment import Deployment
from tests.kit.rows import START, a_run
from tests.runs.bench import NOTE, Bench, open_bench
from tests.runs.shared_databases import loads

WEBHOOK = Webhook("ops", "https://example.com/", ("run.cancelled", "run.failed"))
OUTBOX = Outbox(Settings(webhooks=(WEBHOOK,)))
AHEAD = 4_000_000_000_000_000
"""A time in the year 2096, in microseconds."""

TOLD = Sql("SELECT type FROM webhook_deliveries")


async def pause(run: LiveRun) -> None:
    asked = Pause([Ask("approval", "call", "pay", {"amount": 1})], {})
    assert isinstance(await store_pause(run, asked, Approvals(), lambda: None), Pause)


async def read_run(bench: Bench, run_id: str = "root") -> RunRow:
    run = await bench.database.read(run_reads.get(run_id, EVERYONE))
    assert run is not None
    return run


async def cancel(bench: Bench, run_id: str = "root") -> list[str]:
    """Cancel a run; return its status before and after it."""
    states = await bench.database.write(cancel_run(OUTBOX, run_id, "ann", "enough"))
    assert states is not None
    return [state.status for state in states]


async def list_told(bench: Bench) -> list[str]:
    return await bench.database.read(TOLD.column())


async def enqueue(bench: Bench, run_id: str, turn: int = queue.AFTER_RUNS) -> None:
    queued = a_run(run_id)._replace(queue_turn=turn)
    await bench.database.write(runs.create(queued))


async def test_cancel_of_a_paused_run_closes_what_it_waits_for(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).begin_call(NOTE)
        bench.root.transcript.open_call("c1", "note", {"text": "a"})
        await pause(bench.root)
        assert await cancel(bench) == ["PAUSED", "CANCELLED"]
        (row,) = await bench.database.read(approvals.list_of_run("root"))
        assert (row.status, row.decided_by) == ("cancelled", "ann")
        assert await bench.database.read(approvals.load_checkpoint("root")) is None
        assert await bench.list_steps() == []
        run = await read_run(bench)
        assert (run.cancel_requested_by, run.cancel_reason) == ("ann", "enough")
        (call,) = loads(run.tools)
        assert (call["result"], call["tool_call_error"]) == (CANCELLED_RESULT, True)
        assert {span["status"] for span in loads(run.spans)} == {"cancelled"}
        assert await list_told(bench) == ["run.cancelled"]
        assert await cancel(bench) == ["CANCELLED", "CANCELLED"]
        assert await list_told(bench) == ["run.cancelled"]


async def test_cancel_of_a_lost_run_keeps_the_results_of_its_calls(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.answer_with_call()
        assert await bench.database.write(events.append_batch("root", 4, 0, 4, "[]"))
        assert await bench.lose() == "PENDING"
        last = await bench.database.read(events.get_last_seq("root"))
        assert await cancel(bench) == ["PENDING", "CANCELLED"]
        run = await read_run(bench)
        assert [each["result"] for each in loads(run.tools)] == ["noted"]
        (end,) = await bench.database.read(events.list_after("root", last))
        # The dead worker may have delivered events that it had not stored.
        assert end.first_seq == end.last_seq == last + LOST_SEQ_STEP
        assert end.events.startswith("RunCancelled ")


async def test_cancel_of_a_live_run_leaves_its_end_to_its_worker(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        assert await cancel(bench) == ["RUNNING", "RUNNING"]
        assert (await bench.read("root")).cancel_requested_by == "ann"
        assert await bench.database.read(approvals.load_checkpoint("root")) is not None
        assert await list_told(bench) == []


async def test_cancel_of_a_run_that_has_not_begun_ends_it(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.database.write(runs.create(a_run("new", owner="w1")))
        assert await cancel(bench, "new") == ["PENDING", "CANCELLED"]
        assert [each["role"] for each in loads((await read_run(bench, "new")).messages)] == ["user"]
        assert await list_told(bench) == ["run.cancelled"]


async def test_members_end_with_a_run_that_waits(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        await pause(member)
        await pause(bench.root)
        assert await cancel(bench) == ["PAUSED", "CANCELLED"]
        state = await bench.read("member")
        assert (state.status, state.cancel_requested_by) == ("CANCELLED", "system:parent")
        (row,) = await bench.database.read(approvals.list_of_run("member"))
        assert row.status == "cancelled"
        assert await list_told(bench) == ["run.cancelled"]


async def test_cancel_of_the_last_member_that_waits_releases_its_root(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        first = await bench.start_member("one")
        second = await bench.start_member("two")
        for member in (first, second):
            await pause(member)
        root = Pause([], {})
        assert isinstance(await store_pause(bench.root, root, Approvals(), lambda: None), Pause)
        assert await cancel(bench, "one") == ["PAUSED", "CANCELLED"]
        assert (await bench.read("root")).status == "PAUSED"
        assert await cancel(bench, "two") == ["PAUSED", "CANCELLED"]
        assert (await bench.read("root")).status == "PENDING"


async def test_only_a_run_that_waits_for_nothing_is_released(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        release = release_if_decided("root")
        assert not await bench.database.write(release), "it is RUNNING"
        assert not await bench.database.write(release_if_decided("none"))
        await pause(bench.root)
        assert not await bench.database.write(release), "its approval is pending"
        decide = Sql("UPDATE approvals SET status = 'approved', decided_at = 5")
        await bench.database.write(decide.execute())
        assert await bench.database.write(release)
        assert (await bench.read("root")).status == "PENDING"


async def test_run_that_waits_too_long_in_the_queue_ends(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await enqueue(bench, "queued")
        for run_id, before in (("queued", START - 1), ("root", START + 1), ("none", START + 1)):
            assert not await bench.database.write(end_overdue_run(OUTBOX, run_id, before))
        assert (await bench.read("queued")).status == "PENDING"
        unknown = Sql("UPDATE runs SET queued_at = NULL WHERE run_id = 'queued'")
        await bench.database.write(unknown.execute())
        assert not await bench.database.write(end_overdue_run(OUTBOX, "queued", START + 1))
        known = Sql("UPDATE runs SET queued_at = :at WHERE run_id = 'queued'")
        await bench.database.write(known.execute(at=START))
        assert await list_told(bench) == []
        assert await bench.database.write(end_overdue_run(OUTBOX, "queued", START))
        run = await read_run(bench, "queued")
        assert (run.status, run.error_code) == ("ERROR", "QUEUE_TIMEOUT")
        assert [each["role"] for each in loads(run.messages)] == ["user"]
        # It had no events, and gets none.
        assert await bench.database.read(events.list_after("queued", -1)) == []
        assert await list_told(bench) == ["run.failed"]


async def test_end_of_a_queued_run_is_not_before_its_start_in_the_queue(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        await enqueue(bench, "queued")
        ahead = Sql("UPDATE runs SET queued_at = :at WHERE run_id = 'queued'")
        await bench.database.write(ahead.execute(at=AHEAD))
        assert await cancel(bench, "queued") == ["PENDING", "CANCELLED"]
        run = await read_run(bench, "queued")
        assert (run.finished_at, run.stopped_at) == (AHEAD, AHEAD)


@unit
def record(work: Work[Any], texts: list[str]) -> Steps[Any]:
    """Run a unit, and keep the texts of its statements."""
    steps: Iterator[Statement] = iter(work)
    rows: Any = None
    try:
        while True:
            statement = steps.send(rows)  # type: ignore[attr-defined]
            texts.append(statement.sql)
            rows = yield statement
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("work", ["cancel", "timeout", "claim"])
async def test_session_of_a_queued_run_is_locked_before_the_run(
    deployment: Deployment, work: str
) -> None:
    """The end of another run locks both in this order: PostgreSQL would report a deadlock."""
    async with open_bench(deployment) as bench:
        await enqueue(bench, "queued")
        ends: dict[str, Work[Any]] = {
            "cancel": cancel_run(OUTBOX, "queued", "ann", None),
            "timeout": end_overdue_run(OUTBOX, "queued", START),
            "claim": claim_leg("queued", "w2", None),
        }
        texts: list[str] = []
        await bench.database.write(record(ends[work], texts))
        locks = [text for text in texts if "FOR UPDATE" in text or text.startswith("UPDATE runs")]
        assert "FROM sessions" in locks[0]
        # A run that is not in the queue does not lock its session first.
        texts.clear()
        await bench.database.write(record(cancel_run(OUTBOX, "root", "ann", None), texts))
        locks = [text for text in texts if "FOR UPDATE" in text]
        assert "FROM runs" in locks[0]
