"""Legs of runs: pause, decide, continue, cancel, expire and recover, with a scripted component."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from agentctl import errors
from agentctl.admin.runs_doctor.find import RunsDoctor
from agentctl.admin.runs_doctor.repair import RunRepairs
from agentctl.config.settings import Limits
from agentctl.interface.requests import CancelRequest, ResumeRequest, RunFilter, RunRequest
from agentctl.interface.requests.approvals import Ruling
from agentctl.records.approvals import ApprovalRow
from agentctl.records.times import now
from agentctl.runs.desk.decisions import check_pending, expire_approvals, rule, write_decisions
from agentctl.runs.desk.waiting import cancel_run
from agentctl.runs.life import finish, legs
from agentctl.runs.log.event_rows import decode_events
from agentctl.runs.states import RunCounters
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.components import execute
from agentctl.runtime.context import perform_decided
from agentctl.runtime.pauses import Ask, CallOutcome, Paused
from agentctl.runtime.transcript.events import Content
from agentctl.service.service import Service
from agentctl.store.database import Database, Sql, Work
from agentctl.store.repositories import (
    approvals,
    events,
    quotas,
    run_reads,
    runs,
    sessions,
    workers,
)
from agentctl.store.repositories.quotas import Counters
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import admin, event_data, open_service, user

CALL = Ask("approval", "call-1", "pay", {"amount": 10, "to": "bob"})


class Payer:
    """A component that asks for one payment, and the ledger of the payments that it made."""

    def __init__(self) -> None:
        self.ledger: list[Mapping[str, Any]] = []
        self.legs = 0
        self.before_pay = asyncio.Event()
        self.before_pay.set()

    async def run(self, component: Any, context: Any, catalog: Any) -> None:
        self.legs += 1
        if context.leg is None:
            context.transcript.add_user(context.spec.input)
            context.transcript.begin_answer("m")
            context.transcript.extend_answer("I pay. ")
            context.transcript.add_content("I pay. ")
            context.emit(Content("I pay. "))
            call = {"id": "call-1", "name": "pay", "arguments": dict(CALL.arguments)}
            context.transcript.end_answer([call], "tool_call")
            context.transcript.open_call("call-1", "pay", CALL.arguments)
            raise Paused([CALL], {"step": 1})
        decision = context.leg.find("call-1")
        outcome = await perform_decided(context, decision, self.pay)
        context.transcript.close_call("call-1", outcome.text, error=outcome.failed)
        context.transcript.add_answer(f"Result: {outcome.text}")
        context.transcript.add_content(f"Result: {outcome.text}")
        context.emit(Content(f"Result: {outcome.text}"))

    async def pay(self, arguments: Mapping[str, Any]) -> CallOutcome:
        await self.before_pay.wait()
        self.ledger.append(arguments)
        return CallOutcome("paid")


@pytest.fixture
def payer(monkeypatch: pytest.MonkeyPatch) -> Payer:
    payer = Payer()
    monkeypatch.setattr(execute, "_execute", payer.run)
    return payer


async def start(service: Service, **request: Any) -> dict[str, Any]:
    document = await user(service).runs.create(
        "agent", "echo", RunRequest(message="pay bob", **request)
    )
    return dict(document.value)


def database_of(service: Service) -> Database:
    return service.hosting.databases.system


async def approval_of(service: Service, run_id: str) -> ApprovalRow:
    rows = await database_of(service).read(approvals.list_of_run(run_id))
    return rows[-1]


async def decide(service: Service, run_id: str, verb: Any, **fields: Any) -> bool:
    row = await approval_of(service, run_id)
    decision = Ruling(verb, row.arguments_hash, **fields)
    change = await rule(row, decision, "boss", Limits(), lambda *_: True)
    work = write_decisions(
        database_of(service).outbox, row.root_run_id, [(row.approval_id, change)]
    )
    return (await database_of(service).write(work))[1]


async def wait_for_status(service: Service, run_id: str, *statuses: str) -> dict[str, Any]:
    return await wait_for_run(admin(service), run_id, *statuses)


async def test_approved_call_is_made_once_in_the_next_leg(
    deployment: Deployment, payer: Payer
) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        assert run["status"] == "PAUSED"
        assert run["content"] == "I pay. "
        assert not service.hosting.engine.live_runs()
        assert await decide(service, run["run_id"], "approve")
        assert payer.ledger == []
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])
        ended = await wait_for_status(service, run["run_id"], "COMPLETED")
        assert payer.ledger == [{"amount": 10, "to": "bob"}]
        assert ended["content"] == "I pay. Result: paid"
        assert [message["role"] for message in ended["messages"]] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip
        row = await approval_of(service, run["run_id"])
        assert (row.status, row.execution, row.result) == ("approved", "done", '"paid"')
        assert await database_of(service).read(approvals.load_checkpoint(run["run_id"])) is None


async def test_edited_call_is_made_with_the_edited_arguments(
    deployment: Deployment, payer: Payer
) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        await decide(service, run["run_id"], "approve", arguments={"amount": 5, "to": "bob"})
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])
        await wait_for_status(service, run["run_id"], "COMPLETED")
        assert payer.ledger == [{"amount": 5, "to": "bob"}]


async def test_rejected_call_is_not_made(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        await decide(service, run["run_id"], "reject", note="too much")
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])
        ended = await wait_for_status(service, run["run_id"], "COMPLETED")
        assert payer.ledger == []
        assert ended["content"] == "I pay. Result: The call was rejected: too much"


async def test_expired_approval_counts_as_rejected(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        row = await approval_of(service, run["run_id"])
        expire = Sql("UPDATE approvals SET expires_at = 1 WHERE approval_id = :id")
        await database_of(service).write(expire.execute(id=row.approval_id))
        counters = RunCounters()
        released = await expire_approvals(database_of(service), counters.count_decision)
        assert released == [run["run_id"]]
        assert counters.decided["expired"] == 1
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])
        ended = await wait_for_status(service, run["run_id"], "COMPLETED")
        assert payer.ledger == []
        assert "no one decided in time" in ended["content"]
        assert (await approval_of(service, run["run_id"])).decided_by == "system:expiry"


async def test_cancel_of_a_paused_run_stops_at_once(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        document = await user(service).runs.cancel(
            "agent", "echo", run["run_id"], CancelRequest(session_id=run["session_id"], wait=0.0)
        )
        assert document.value["cancel"] == "stopped"
        record = await wait_for_status(service, run["run_id"], "CANCELLED")
        assert record["stopped_at"] == record["finished_at"]
        assert record["tools"][0]["result"] == "cancelled"
        assert (await approval_of(service, run["run_id"])).status == "cancelled"
        assert payer.ledger == []


async def test_two_claims_of_a_leg_execute_it_once(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as first, open_service(deployment) as second:
        run = await start(first)
        await decide(first, run["run_id"], "approve")
        claims = await asyncio.gather(
            *(
                service.hosting.engine.claims.claim(database_of(service), run["run_id"])
                for service in (first, second) * 5
            )
        )
        assert sum(claim is not None for claim in claims) == 1
        await wait_for_status(first, run["run_id"], "COMPLETED")
        assert payer.ledger == [{"amount": 10, "to": "bob"}]


async def test_claimed_leg_executes_after_a_failed_read(
    deployment: Deployment, payer: Payer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_revoked = legs.is_revoked
    failures = [errors.Unavailable("no answer")] * 2

    def read(actor: str | None, at: int) -> Work[bool]:
        if failures:
            raise failures.pop()
        return is_revoked(actor, at)

    monkeypatch.setattr(legs, "is_revoked", read)
    async with open_service(deployment) as service:
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])
        await wait_for_status(service, run["run_id"], "COMPLETED")
    assert payer.ledger == [{"amount": 10, "to": "bob"}]


async def test_events_of_all_legs_are_one_stream(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        run_id = ""
        names = []
        async for event in user(service).runs.stream("agent", "echo", RunRequest(message="pay")):
            names.append((event.seq, event.name))
        page = await admin(service).runs.list(RunFilter())
        run_id = page.value["data"][0]["run_id"]
        await decide(service, run_id, "approve")
        await service.hosting.engine.claims.claim(database_of(service), run_id)
        await wait_for_status(service, run_id, "COMPLETED")
        assert [name for _, name in names] == ["RunStarted", "RunContent", "RunPaused"]
        stored = await database_of(service).read(events.list_after(run_id, -1))
        assert [event.name for row in stored for event in decode_events(row)] == [
            "RunStarted", "RunContent", "RunPaused", "RunContinued", "RunContent", "RunCompleted",
        ]  # fmt: skip


async def lose_leg(service: Service, run_id: str, owner: str = "gone") -> None:
    """Turn a dead worker the owner of the leg of a run."""
    take = Sql(
        "UPDATE runs SET owner = :owner, status = 'RUNNING' WHERE run_id = :run_id"
        " AND status = 'PENDING'"
    )
    await database_of(service).write(take.execute(run_id=run_id, owner=owner))


async def test_lost_leg_goes_on_from_its_checkpoint_twice(
    deployment: Deployment, payer: Payer
) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        for _ in range(2):
            await lose_leg(service, run["run_id"])
            assert await recover_runs(database, "gone") == []
            assert (await admin(service).runs.get(run["run_id"])).value["status"] == "PENDING"
        await service.hosting.engine.claims.claim(database, run["run_id"])
        await wait_for_status(service, run["run_id"], "COMPLETED")
        assert len(payer.ledger) == 1


async def test_reported_use_of_a_lost_leg_counts(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        await lose_leg(service, run["run_id"])
        of_models = '{"m": {"total_tokens": 10}, "n": {"total_tokens": 20}}'
        reported = Counters('{"total_tokens": 30}', of_models)
        await database.write(quotas.report(run["run_id"], 30, 0, reported))
        await recover_runs(database, "gone")
        await service.hosting.engine.claims.claim(database, run["run_id"])
        ended = await wait_for_status(service, run["run_id"], "COMPLETED")
        assert ended["total_tokens"] == 30


async def test_third_loss_of_a_leg_ends_the_run(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        for _ in range(2):
            await lose_leg(service, run["run_id"])
            await recover_runs(database, "gone")
        await lose_leg(service, run["run_id"])
        assert await recover_runs(database, "gone") == [run["run_id"]]
        record = (await admin(service).runs.get(run["run_id"])).value
        assert record["error"] is not None
        assert record["error"]["code"] == "WORKER_LOST"


async def lose_call(service: Service, run_id: str, *, has_effects: bool = False) -> None:
    """Turn a dead worker the owner of a leg whose approved call was executing."""
    await decide(service, run_id, "approve")
    await lose_leg(service, run_id)
    row = await approval_of(service, run_id)
    database = database_of(service)
    assert await database.write(approvals.begin_execution(row.approval_id, run_id, 1))
    if has_effects:
        assert await database.write(runs.mark_effects(run_id, 2))
    await recover_runs(database, "gone")


@pytest.mark.parametrize(
    ("verb", "fields", "paid", "content"),
    [
        ("complete", {"result": "paid by hand"}, 0, "Result: paid by hand"),
        ("fail", {"note": "the bank refused"}, 0, "Result: the bank refused"),
        ("retry", {}, 1, "Result: paid"),
    ],
)
async def test_lost_call_is_unknown_until_a_person_says_what_happened(
    deployment: Deployment, payer: Payer, verb: str, fields: dict[str, Any], paid: int, content: str
) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await lose_call(service, run["run_id"])
        first, asked = await database.read(approvals.list_of_run(run["run_id"]))
        assert (first.status, first.execution) == ("approved", "unknown")
        assert (asked.kind, asked.status) == ("outcome", "pending")
        record = (await admin(service).runs.get(run["run_id"])).value
        assert record["status"] == "PAUSED"
        assert await decide(service, run["run_id"], verb, **fields)
        await service.hosting.engine.claims.claim(database, run["run_id"])
        ended = await wait_for_status(service, run["run_id"], "COMPLETED")
        assert len(payer.ledger) == paid
        assert ended["content"] == f"I pay. {content}"


async def test_deleted_events_of_a_paused_run_are_rebuilt_from_its_rows(
    deployment: Deployment, payer: Payer
) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await lose_call(service, run["run_id"])
        await database.write(events.delete_older(now() + 1))
        request = ResumeRequest(run["session_id"])
        resumed = user(service).runs.resume("agent", "echo", run["run_id"], request)
        *_, last = [event async for event in resumed]
        decided, asked = await database.read(approvals.list_of_run(run["run_id"]))
        assert (decided.status, asked.status) == ("approved", "pending")
        assert last.name == "RunPaused"
        listed = event_data(last)["approvals"]
        assert [approval["approval_id"] for approval in listed] == [asked.approval_id]


async def test_lost_leg_with_effects_is_not_repeated(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        await lose_leg(service, run["run_id"])
        assert await database.write(runs.mark_effects(run["run_id"], 2))
        assert await recover_runs(database, "gone") == [run["run_id"]]
        assert payer.ledger == []


async def test_lost_call_after_other_effects_ends_the_run_once_it_is_reported(
    deployment: Deployment, payer: Payer
) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        run = await start(service)
        await lose_call(service, run["run_id"], has_effects=True)
        assert (await admin(service).runs.get(run["run_id"])).value["status"] == "PAUSED"
        assert await decide(service, run["run_id"], "retry")
        await service.hosting.engine.claims.claim(database, run["run_id"])
        record = await wait_for_status(service, run["run_id"], "COMPLETED", "ERROR")
        assert record["error"]["code"] == "WORKER_LOST"
        assert payer.ledger == []


async def test_worker_of_a_leg_has_a_row(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as first, open_service(deployment) as second:
        run = await start(first)
        await decide(first, run["run_id"], "approve")
        payer.before_pay.clear()
        assert await second.hosting.engine.claims.claim(database_of(second), run["run_id"])
        state = await database_of(second).read(run_reads.get_state(run["run_id"]))
        assert state is not None
        assert state.owner == second.hosting.engine.worker_id
        # Without a row, the next sweep of any server would take the run from its worker.
        assert await database_of(second).read(workers.get(state.owner)) is not None
        payer.before_pay.set()
        await wait_for_status(first, run["run_id"], "COMPLETED")


async def test_cancel_while_the_approved_call_works(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        payer.before_pay.clear()
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])

        async def is_executing() -> bool:
            return (await approval_of(service, run["run_id"])).execution == "executing"

        await wait_until(is_executing)
        cancel = CancelRequest(session_id=run["session_id"], wait=30)
        await user(service).runs.cancel("agent", "echo", run["run_id"], cancel)
        await wait_for_status(service, run["run_id"], "CANCELLED")
        assert (await approval_of(service, run["run_id"])).execution == "unknown"
        assert await database_of(service).read(approvals.get("none", EVERYONE)) is None


async def test_full_database_ends_the_run(
    deployment: Deployment, payer: Payer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legs, "MAXIMUM_PENDING", 1)
    async with open_service(deployment) as service:
        assert (await start(service))["status"] == "PAUSED"
        record = await start(service)
        assert record["status"] == "ERROR"
        assert record["error"]["code"] == "APPROVALS_FULL"


async def test_runs_doctor_reports_what_waits(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
        old, decided, lost = [await start(service) for _ in range(3)]
        age = Sql("UPDATE runs SET paused_at = 1 WHERE run_id = :run_id")
        await database.write(age.execute(run_id=old["run_id"]))
        await decide(service, decided["run_id"], "approve")
        await lose_call(service, lost["run_id"])
        problems = await RunsDoctor(service.hosting, None).find_problems(lambda _: None)
        assert [(problem.kind, problem.run_id) for problem in problems] == [
            ("paused", old["run_id"]),
            ("unclaimed", decided["run_id"]),
            ("unknown_call", lost["run_id"]),
        ]


REQUESTED = Sql(
    "UPDATE runs SET cancel_requested_at = 1, cancel_requested_by = 'ann',"
    " cancel_reason = 'no need' WHERE run_id = :run_id"
)


async def leave_cancel(service: Service, *, decided: bool) -> str:
    """Store the cancel of a run that waits as 0.2.1 did: nothing carries it out."""
    run = await start(service)
    run_id: str = run["run_id"]
    if decided:
        await decide(service, run_id, "approve")
    await database_of(service).write(REQUESTED.execute(run_id=run_id))
    return run_id


@pytest.mark.parametrize("decided", [False, True])
async def test_sweep_carries_out_a_cancel_that_was_left(
    deployment: Deployment, payer: Payer, decided: bool
) -> None:
    async with open_service(deployment) as service:
        run_id = await leave_cancel(service, decided=decided)
        await service.hosting.engine.claims.advance_stalled(database_of(service))
        record = (await admin(service).runs.get(run_id)).value
        assert (record["status"], record["cancel_reason"]) == ("CANCELLED", "no need")
        assert record["cancel_requested_by"] == "ann"
        assert (await approval_of(service, run_id)).status == "approved" if decided else "cancelled"
    assert payer.ledger == []


@pytest.mark.parametrize("decided", [False, True])
async def test_runs_doctor_carries_out_a_cancel_that_was_left(
    deployment: Deployment, payer: Payer, decided: bool
) -> None:
    async with open_service(deployment) as service:
        run_id = await leave_cancel(service, decided=decided)
        (problem,) = await RunsDoctor(service.hosting, None).find_problems(lambda _: None)
        assert (problem.kind, problem.run_id) == ("inconsistent", run_id)
        assert "cancel_requested_at is set" in problem.problem
        (done,) = [each async for each in RunRepairs(service.hosting).repair([problem])]
        assert (done.outcome, done.detail) == ("repaired", "it is CANCELLED now")
        assert await RunsDoctor(service.hosting, None).find_problems(lambda _: None) == []
        (gone,) = [each async for each in RunRepairs(service.hosting).repair([problem])]
        assert gone.outcome == "gone"


async def test_cancel_after_a_pause_ends_the_run_at_once(
    deployment: Deployment, payer: Payer
) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        database = database_of(service)
        assert not await database.write(runs.request_cancel(run["run_id"], 1, "ann", None))
        states = await database.write(cancel_run(database.outbox, run["run_id"], "ann", None))
        assert states is not None
        assert [state.status for state in states] == ["PAUSED", "CANCELLED"]
        assert await database.write(cancel_run(database.outbox, "none", "ann", None)) is None


async def test_time_of_an_approval_bounds_its_decisions(
    deployment: Deployment, payer: Payer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        database = database_of(service)
        row = await approval_of(service, run["run_id"])
        expires = Sql("UPDATE approvals SET expires_at = :at WHERE approval_id = :id")
        await database.write(expires.execute(id=row.approval_id, at=now() + 3_600_000_000))
        check_pending(await approval_of(service, run["run_id"]))
        end = now()
        await database.write(expires.execute(id=row.approval_id, at=end))
        with pytest.raises(errors.Conflict, match="has expired"):
            check_pending(await approval_of(service, run["run_id"]))

        async def clock_at(moment: int) -> list[str]:
            async def clock() -> int:
                return moment

            monkeypatch.setattr(database, "clock", clock)
            return await expire_approvals(database)

        assert await clock_at(end - 1) == []
        assert await clock_at(end) == [run["run_id"]]


@pytest.mark.parametrize("schema", ['{"$ref": "#/none"}', '{"type": "nothing"}'])
async def test_arguments_are_not_edited_without_a_usable_schema(
    deployment: Deployment, payer: Payer, schema: str
) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        change = Sql("UPDATE approvals SET schema = :schema")
        await database_of(service).write(change.execute(schema=schema))
        with pytest.raises(errors.ValidationFailed, match="arguments does not match its schema"):
            await decide(service, run["run_id"], "approve", arguments={"amount": 5, "to": "bob"})
        assert (await approval_of(service, run["run_id"])).status == "pending"
        assert await decide(service, run["run_id"], "approve")


async def test_length_of_a_note_is_bounded(deployment: Deployment, payer: Payer) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        with pytest.raises(errors.ValidationFailed, match="at most 500 characters"):
            await decide(service, run["run_id"], "reject", note="n" * 501)
        assert await decide(service, run["run_id"], "reject", note="n" * 500)


async def test_pause_is_stored_when_the_database_answers_again(
    deployment: Deployment, payer: Payer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pause = finish.write_pause
    failures = [errors.Unavailable("no answer")] * 2

    def write(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return write_pause(*arguments)

    monkeypatch.setattr(finish, "write_pause", write)
    async with open_service(deployment) as service:
        outbox = database_of(service).outbox
        woken: list[None] = []
        monkeypatch.setattr(outbox, "wake", lambda: woken.append(None))
        assert (await start(service))["status"] == "PAUSED"
        # The webhooks of a pause are sent at once.
        assert len(woken) == 1
    assert not failures


@pytest.mark.parametrize("is_known", [False, True])
async def test_cancel_of_an_ended_run_makes_the_other_writes(
    deployment: Deployment, payer: Payer, is_known: bool
) -> None:
    rename = Sql("UPDATE sessions SET session_name = 'cancelled' WHERE session_id = :session_id")
    async with open_service(deployment) as service:
        run = await start(service)
        database = database_of(service)
        first = await database.write(cancel_run(database.outbox, run["run_id"], "ann", None))
        assert first is not None
        result = await service.hosting.canceller.cancel(
            database,
            run["run_id"],
            actor="bob",
            reason=None,
            wait=0.0,
            extra_write=lambda: rename.execute(session_id=run["session_id"]),
            known_state=first[1] if is_known else None,
        )
        assert (result.outcome, result.state) == ("already_final", first[1])
        session = await database.read(sessions.get(run["session_id"], EVERYONE))
        assert session is not None
        assert session.session_name == "cancelled"
