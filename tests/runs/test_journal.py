"""The journal of a durable run in the database: its steps, and the losses that they allow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentctl import errors
from agentctl.config.settings import Limits
from agentctl.interface.requests.approvals import Ruling
from agentctl.runs.desk.decisions import rule, write_decisions
from agentctl.runs.log.journal import RunJournal
from agentctl.runs.states import Ending
from agentctl.runtime.pauses import ApprovedEnd, CallOutcome, JournaledCall
from agentctl.runtime.transcript.history import StateChanges
from agentctl.store.repositories import approvals, runs
from tests.kit.deployment import Deployment
from tests.kit.rows import an_approval
from tests.runs.bench import SET_ATTEMPT, open_bench
from tests.runs.shared_databases import loads
from tests.runs.unlucky_runs import quick_retries

__all__ = ["quick_retries"]

NOTE = JournaledCall("c1", "note", {"text": "a"})


async def test_third_loss_without_a_step_ends_the_run(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.start_member()
        assert await bench.lose() == "ERROR"


async def test_finished_step_of_a_member_counts_after_its_end(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        await bench.journal_of(member).add_answer({"transcript": {}}, [NOTE])
        await bench.journal_of(member).end_call(NOTE, CallOutcome("noted"))
        await bench.end(member)
        assert await bench.list_steps("member") == []
        (row,) = await bench.list_steps()
        assert (row.kind, row.state, row.root_attempt) == ("member", "started", 4)
        assert await bench.lose() == "PENDING"


async def test_end_of_a_member_that_began_in_an_earlier_attempt_counts(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        bench.root.attempt = 2
        await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=2))
        member = await bench.start_member()
        bench.root.attempt = 4
        await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=4))
        await bench.end(member)
        (row,) = await bench.list_steps()
        assert (row.attempt, row.root_attempt) == (2, 4)
        assert await bench.lose() == "PENDING"


async def test_answer_of_a_live_member_counts(deployment: Deployment) -> None:
    """The member is in its attempt 1: its step belongs to the attempt of the root run."""
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        await bench.journal_of(member).add_answer({"transcript": {}})
        (row,) = await bench.list_steps("member")
        assert (row.attempt, row.root_attempt) == (1, 4)
        assert await bench.lose() == "PENDING"


async def test_steps_are_numbered_and_ended_once(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        journal = bench.journal_of(bench.root)
        await journal.begin_call(NOTE)
        await journal.begin_call(NOTE)
        await journal.end_call(NOTE, CallOutcome("noted", failed=True))
        await journal.add_answer({"transcript": {}}, [JournaledCall("c2", "note", {})])
        found = [(row.seq, row.kind, row.call_id, row.state) for row in await bench.list_steps()]
        assert found == [
            (0, "tool", "c1", "failed"), (1, "answer", None, "done"), (2, "tool", "c2", "started"),
        ]  # fmt: skip
        stored = await bench.list_steps()
        assert [row.ended_at is not None for row in stored] == [True, True, False]
        again = RunJournal(bench.root, stored, 0)
        assert again.next_step == 3
        assert RunJournal(bench.root, stored, 3).find_member("c2") is None


@pytest.mark.parametrize("lost", ["attempt", "cancel", "end"])
async def test_process_that_has_lost_the_run_writes_no_step(
    deployment: Deployment, lost: str
) -> None:
    async with open_bench(deployment) as bench:
        journal = bench.journal_of(bench.root)
        await journal.begin_call(NOTE)
        if lost == "attempt":
            await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=5))
        elif lost == "cancel":
            await bench.database.write(runs.request_cancel("root", 2, "ann", None))
        else:
            await bench.end(bench.root)
        before = await bench.list_steps()
        with pytest.raises(asyncio.CancelledError):
            await journal.begin_call(JournaledCall("c2", "note", {}))
        outcome: Any = journal.end_call(NOTE, CallOutcome("noted"))
        if lost == "cancel":
            # The call has happened: its result is kept although the run ends.
            await outcome
            assert [row.state for row in await bench.list_steps()] == ["done"]
        else:
            with pytest.raises(asyncio.CancelledError):
                await outcome
            assert await bench.list_steps() == before
        before = await bench.list_steps()
        with pytest.raises(asyncio.CancelledError):
            await journal.add_answer({"transcript": {}})
        assert await bench.list_steps() == before


async def test_stored_steps_are_known_after_the_checkpoint(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.start_member()
        stored = await bench.list_steps()
        (row,) = stored
        assert (row.kind, row.idempotent, row.ended_at) == ("member", 1, None)
        assert RunJournal(bench.root, stored, 0).find_member("step-member") == "member"
        assert RunJournal(bench.root, stored, 1).find_member("step-member") is None
        assert RunJournal(bench.root, stored, 1).next_step == 1
        assert not RunJournal(bench.root, stored, 1).is_parking


async def test_answer_replaces_the_one_of_an_earlier_process(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).replace_answer({"graph": 1})
        await bench.journal_of(bench.root).begin_call(NOTE)
        later = RunJournal(bench.root, await bench.list_steps(), 0)
        await later.replace_answer({"graph": 2})
        answer, note = await bench.list_steps()
        assert (answer.seq, answer.kind, note.seq) == (0, "answer", 1)
        assert loads(answer.body) == {"graph": 2, "after": 2}
        third = RunJournal(bench.root, [answer, note], 1)
        await third.replace_answer({"graph": 3})
        assert [row.seq for row in await bench.list_steps()] == [0, 1, 2]


async def test_answer_is_replaced_in_its_row(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        journal = bench.journal_of(bench.root)
        await journal.replace_answer({"graph": 1})
        await journal.replace_answer({"graph": 2})
        (answer,) = await bench.list_steps()
        assert loads(answer.body)["graph"] == 2


async def test_replaced_answer_is_a_step_of_the_present_attempt(deployment: Deployment) -> None:
    """So it counts, if this process is lost as well."""
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).replace_answer({"graph": 1})
        (before,) = await bench.list_steps()
        bench.root.attempt = 5
        await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=5))
        stored = replace(before, ended_at=1)
        await RunJournal(bench.root, [stored], 0).replace_answer({"graph": 2})
        (after,) = await bench.list_steps()
        assert (after.seq, after.attempt, after.root_attempt) == (0, 5, 5)
        assert before.ended_at is not None
        assert after.ended_at is not None
        assert after.ended_at >= before.ended_at


@pytest.mark.parametrize("method", ["add_answer", "replace_answer"])
async def test_model_may_use_the_id_of_a_call_again(deployment: Deployment, method: str) -> None:
    """The steps of an earlier answer stay as they are."""
    async with open_bench(deployment) as bench:
        journal = bench.journal_of(bench.root)
        await journal.begin_call(NOTE)
        await journal.end_call(NOTE, CallOutcome("noted"))
        (before,) = await bench.list_steps()
        await getattr(journal, method)({"number": 1})
        await journal.begin_call(NOTE)
        noted, answer, again = await bench.list_steps()
        assert noted == before
        assert (answer.kind, again.call_id, again.state) == ("answer", "c1", "started")


async def test_only_the_first_step_has_what_the_component_was_given(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        journal = bench.journal_of(bench.root)
        await journal.add_answer({"number": 1})
        await journal.add_answer({"number": 2})
        first, second = [loads(row.body) for row in await bench.list_steps()]
        assert first["begin"]["is_first"] is False
        assert second == {"number": 2}


async def test_end_of_a_member_keeps_the_changes_of_the_session_state(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        first = await bench.start_member("one")
        second = await bench.start_member("two")
        bench.root.state.apply(StateChanges({"topic": "tea"}, ()))
        await bench.end(second)
        one, two = await bench.list_steps()
        assert loads(one.body) == {"run_id": "one", "member": "echo"}
        assert loads(two.body)["session_state"] == {"values": {"topic": "tea"}, "removed": []}
        assert (one.ended_at, two.state) == (None, "started")
        await bench.end(first)


async def test_begin_of_a_step_is_kept_when_it_begins_again(deployment: Deployment) -> None:
    step = JournaledCall("s1", "look", {"at": "sea"}, kind="step")
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).begin_call(step, {"call": 1})
        (before,) = await bench.list_steps()
        body = loads(before.body)
        assert (body["call"], body["arguments"]) == (1, {"at": "sea"})
        assert body["begin"]["is_first"] is False
        bench.root.attempt = 5
        await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=5))
        later = RunJournal(bench.root, [before], 0)
        await later.begin_call(step, {"call": 2})
        (again,) = await bench.list_steps()
        assert loads(again.body) == {**body, "call": 2}
        assert (again.seq, again.attempt) == (0, 5)
        await later.end_call(step, CallOutcome("seen"), {"call": 3})
        (ended,) = await bench.list_steps()
        assert loads(ended.body) == {
            **body,
            "call": 3,
            "text": "seen",
            "failed": False,
            "counts": True,
            "routed": False,
        }


async def test_call_of_an_earlier_process_ends_in_its_row(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).begin_call(NOTE)
        (begun,) = await bench.list_steps()
        bench.root.attempt = 5
        await bench.database.write(SET_ATTEMPT.execute(run_id="root", attempt=5))
        bench.root.state.apply(StateChanges({"n": 1}, ()))
        await RunJournal(bench.root, [begun], 0).end_call(NOTE, CallOutcome("noted"))
        (ended,) = await bench.list_steps()
        assert (ended.seq, ended.attempt, ended.state) == (0, 5, "done")
        assert ended.started_at == begun.started_at
        assert ended.ended_at is not None
        body = loads(ended.body)
        assert (body["text"], body["arguments"]) == ("noted", {"text": "a"})
        assert body["session_state"]["values"] == {"n": 1}


@pytest.mark.parametrize(
    ("verb", "fields", "state", "text"),
    [
        ("complete", {"result": "seen"}, "done", "seen"),
        ("complete", {"result": {"n": 1}}, "done", '{"n":1}'),
        ("fail", {"note": "it was not sent"}, "failed", "it was not sent"),
        ("retry", {}, "again", None),
    ],
)
async def test_answer_about_a_lost_step_is_stored_in_it(
    deployment: Deployment, verb: Any, fields: dict[str, Any], state: str, text: str | None
) -> None:
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).begin_call(NOTE)
        assert await bench.lose() == "PAUSED"
        (asked,) = await bench.database.read(approvals.list_of_run("root"))
        assert (asked.kind, asked.status) == ("outcome", "pending")
        decision = Ruling(verb, asked.arguments_hash, **fields)
        change = await rule(asked, decision, "boss", Limits(), lambda *_: True)
        decisions = [(asked.approval_id, change)]
        _, continues = await bench.database.write(
            write_decisions(bench.database.outbox, "root", decisions)
        )
        assert continues
        (step,) = await bench.list_steps()
        body = loads(step.body)
        assert (step.state, body.get("text")) == (state, text)
        assert body.get("failed", False) == (verb == "fail")


async def test_end_without_a_begin_is_a_step_that_may_begin_again(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        journal = bench.journal_of(bench.root)
        await bench.start_member()
        member = JournaledCall("step-member", "walk", {}, kind="member")
        await journal.end_call(member, CallOutcome("walked"))
        await journal.end_call(NOTE, CallOutcome("noted"))
        await journal.begin_call(NOTE)
        walk, note = await bench.list_steps()
        assert loads(walk.body)["run_id"] == "member"
        assert (walk.state, note.state) == ("done", "started")


@pytest.mark.parametrize(("failed", "state"), [(False, "done"), (True, "failed")])
async def test_end_of_an_approved_call_is_stored_in_its_approval(
    deployment: Deployment, failed: bool, state: str
) -> None:
    async with open_bench(deployment) as bench:
        asked = an_approval("root")
        await bench.database.write(approvals.create([asked]))
        decision = Ruling("approve", asked.arguments_hash)
        change = await rule(asked, decision, "boss", Limits(), lambda *_: True)
        assert await bench.database.write(approvals.decide("a1", change))
        assert await bench.database.write(approvals.begin_execution("a1", "root", 2))

        journal = bench.journal_of(bench.root)
        await journal.begin_call(NOTE)
        outcome = CallOutcome("paid, and a note", failed=failed)
        await journal.end_call(NOTE, outcome, approved=ApprovedEnd("a1", "paid"))

        (row,) = await bench.database.read(approvals.list_of_run("root"))
        assert (row.execution, row.result) == (state, '"paid"')
        assert row.executed_at is not None
        (step,) = await bench.list_steps()
        assert (step.state, step.ended_at) == (state, row.executed_at)


async def test_stopped_run_does_not_wait_for_the_database(
    deployment: Deployment, quick_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(deployment) as bench:
        attempts = 0

        async def fail(_: object) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 2:
                bench.root.stop(Ending.cancelled("boss", None))
            assert attempts < 5, "the write is attempted although its run has to stop"
            raise errors.Unavailable("no answer")

        monkeypatch.setattr(bench.database, "write", fail)
        with pytest.raises(errors.Unavailable):
            await bench.journal_of(bench.root).begin_call(NOTE)
        assert attempts in (2, 3)
