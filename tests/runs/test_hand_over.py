"""A durable run is handed over: what the database has for the process that goes on."""

from __future__ import annotations

import pytest

from agentctl.runs.desk.waiting import cancel_run
from agentctl.runs.life.finish import store_hand_over
from agentctl.runs.life.live import LiveRun
from agentctl.runs.states import Ending, HandOver, LegEnd
from agentctl.runtime.pauses import JournaledCall
from agentctl.store.repositories import approvals, events
from tests.kit.deployment import Deployment
from tests.runs.bench import OWNER, SET_ATTEMPT, Bench, open_bench, report_while_storing

BETWEEN = HandOver()
LOST = HandOver(lost=True)


async def hand_over(bench: Bench, ending: HandOver, run: LiveRun | None = None) -> LegEnd:
    def fail() -> None:
        raise AssertionError("the database is available")

    return await store_hand_over(run or bench.root, ending, fail)


async def test_run_between_two_steps_waits_for_the_next_process(deployment: Deployment) -> None:
    async with open_bench(deployment, recorded=True) as bench:
        published = bench.root.stream
        published.publish("RunContent", b'{"content":"a"}')
        assert await hand_over(bench, BETWEEN) == BETWEEN

        state = await bench.read("root")
        assert (state.status, state.attempt, state.owner) == ("PENDING", 5, None)
        # Nothing was lost: the leg of the next process is no repetition.
        checkpoint = await bench.database.read(approvals.load_checkpoint("root"))
        assert checkpoint is not None
        assert checkpoint.attempt == 4
        # The events that were only in memory; followers read the next ones from the database.
        (batch,) = await bench.database.read(events.list_after("root", -1))
        assert (batch.first_seq, batch.last_seq) == (0, 0)
        assert published.events_from(1) is None


@pytest.mark.parametrize("recorded", [False, True])
async def test_run_without_new_events_is_handed_over(
    deployment: Deployment, recorded: bool
) -> None:
    async with open_bench(deployment, recorded=recorded) as bench:
        assert await hand_over(bench, BETWEEN) == BETWEEN
        assert (await bench.read("root")).status == "PENDING"
        assert await bench.database.read(events.list_after("root", -1)) == []


@pytest.mark.parametrize("ending", [BETWEEN, LOST])
async def test_member_whose_leg_has_ended_waits_with_its_root(
    deployment: Deployment, ending: HandOver
) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        # A run without any progress would not be returned after so many attempts.
        await bench.journal_of(bench.root).add_answer({"number": 1})
        assert await hand_over(bench, ending, member) == ending
        assert (await bench.read("member")).status == "RUNNING"
        assert await hand_over(bench, ending) == ending
        state = await bench.read("member")
        assert (state.status, state.owner) == ("PAUSED", None)


async def test_interrupted_call_is_a_question_after_the_hand_over(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).begin_call(JournaledCall("c1", "pay", {}))
        assert await hand_over(bench, LOST) == LOST
        assert (await bench.read("root")).status == "PAUSED"
        (asked,) = await bench.database.read(approvals.list_of_run("root"))
        assert (asked.kind, asked.status, asked.tool_call_id) == ("outcome", "pending", "c1")


async def test_run_that_is_lost_too_often_is_not_handed_over(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        ending = await hand_over(bench, LOST)
        assert ending == Ending.cancelled("system", None)
        # Its end is stored next, and takes the member with it.
        assert (await bench.read(member.run_id)).status == "PAUSED"


@pytest.mark.parametrize("is_known", [False, True])
async def test_cancelled_run_ends_instead_of_the_hand_over(
    deployment: Deployment, is_known: bool
) -> None:
    async with open_bench(deployment) as bench:
        await bench.start_member()
        await bench.database.write(cancel_run(bench.database.outbox, "root", "boss", "enough"))
        expected = Ending.cancelled("system", None)
        if is_known:
            expected = Ending.cancelled("boss", "enough")
            bench.root.stop(expected)
        assert await hand_over(bench, BETWEEN) == expected
        state = await bench.read("root")
        assert (state.status, state.attempt, state.owner) == ("RUNNING", 4, OWNER)
        # It can be ended with the root run.
        assert (await bench.read("member")).status == "PAUSED"


@pytest.mark.parametrize("ending", [BETWEEN, LOST])
async def test_hand_over_that_was_committed_is_not_repeated(
    deployment: Deployment, ending: HandOver
) -> None:
    """The response to the first attempt was lost."""
    async with open_bench(deployment) as bench:
        await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=5))
        assert await hand_over(bench, ending) == ending
        state = await bench.read("root")
        assert (state.status, state.attempt) == ("RUNNING", 5)


async def test_run_that_another_process_has_ended_is_not_handed_over(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        await bench.end(bench.root)
        assert await hand_over(bench, BETWEEN) == Ending.cancelled("system", None)
        assert (await bench.read("root")).status == "COMPLETED"


async def test_no_event_follows_the_stored_ones(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that ignores its stop may still report while the hand-over is stored."""
    async with open_bench(deployment, recorded=True) as bench:
        stream = report_while_storing(bench, monkeypatch)
        assert await hand_over(bench, BETWEEN) == BETWEEN
        assert stream.next == 1


async def test_hand_over_wakes_the_deliveries(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question about an interrupted call is reported to the receivers of webhooks."""
    async with open_bench(deployment) as bench:
        wakes: list[str] = []
        monkeypatch.setattr(bench.database.outbox, "wake", lambda: wakes.append("woken"))
        assert await hand_over(bench, BETWEEN) == BETWEEN
        assert wakes == ["woken"]
