"""Approvals on both engines: equal except ids, times and hashes."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.interface.operations import Operations
from agentctl.interface.requests import Page, RunRequest, StreamEvent
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from tests.contract.stories import (
    OperationCall,
    Outcome,
    Stage,
    call_operation,
    normalize,
    read_events,
)
from tests.kit.conditions import wait_for_run

USER = ("agents:run", "agents:read", "sessions:read")
APPROVER = ("approvals:read", "approvals:write")
ABSENT = "01900000-0000-7000-8000-000000000000"
OLDEST_FIRST = Page(sort_order="asc")


async def read_continued(operations: Operations, run_id: str, request: ContinueRequest) -> Any:
    """Return the events of a continuation, with numbers from 0."""
    events = operations.runs.stream_continued("agent", "payer", run_id, request)
    first: list[int] = []

    async def renumber() -> Any:
        async for event in events:
            first.append(event.seq)
            yield StreamEvent(event.seq - first[0], event.name, event.data)

    return await read_events(renumber())


async def decide_story(user: Operations, approver: Operations) -> list[Outcome]:
    """Decide about the approvals of a run, with every error."""
    run = (await user.runs.create("agent", "payer", RunRequest("other ask open", "s1"))).value
    run_id = run["run_id"]
    wanted = ApprovalFilter(run_id=run_id, page=OLDEST_FIRST)
    call, question, tool = (await approver.approvals.list(wanted)).value["data"]
    seen = call["arguments_hash"]

    def decide(
        approval: Any, *fields: Any, idempotency_key: str | None = None, **more: Any
    ) -> OperationCall:
        place = ("agent", "payer", approval["approval_id"])
        ruling = Ruling(*fields, **more)
        return lambda p: p.approvals.decide(*place, ruling, idempotency_key)

    calls: list[OperationCall] = [
        lambda p: p.approvals.list(wanted),
        lambda p: p.approvals.list(ApprovalFilter(kind="input", page=Page(limit=0))),
        lambda p: p.approvals.list(ApprovalFilter(run_id="\0")),
        lambda p: p.approvals.list(ApprovalFilter(db_id="nowhere")),
        lambda p: p.approvals.get("agent", "payer", call["approval_id"]),
        lambda p: p.approvals.get("agent", "payer", ABSENT),
        lambda p: p.approvals.get("team", "payer", call["approval_id"]),
        lambda p: p.approvals.get("agent", "nobody", call["approval_id"]),
        decide(call, "approve"),
        decide(call, "approve", "sha256:0"),
        decide(call, "approve", seen, arguments={"amount": "x", "to": "y"}),
        decide(call, "answer", answer="left"),
        decide(call, "reject", note="x" * 501),
        decide(call, "reject", answer=1),
        decide(call, "reject", note="\0"),
        decide(call, "approve", seen, arguments={"amount": 2**64, "to": "y"}),
        decide(call, "approve", seen, arguments={"to": "y" * 70_000, "amount": 1}),
        decide(call, "reject", idempotency_key="not a key"),
        decide({"approval_id": ABSENT}, "approve", seen),
        decide(call, "approve", seen, {"amount": 7, "to": "eve"}, note="less", idempotency_key="k"),
        decide(call, "approve", seen, {"amount": 7, "to": "eve"}, note="less", idempotency_key="k"),
        decide(call, "reject", idempotency_key="k"),
        decide(call, "reject"),
        decide(question, "answer", answer="up"),
        decide(question, "answer", answer="right"),
        decide(tool, "fail", note="no such file"),
    ]
    outcomes = [await call_operation(approver, call) for call in calls]
    outcomes.append(await call_operation(user, calls[0]))
    await wait_for_run(user, run_id, "COMPLETED")
    outcomes.append(await call_operation(user, lambda p: p.runs.get(run_id)))
    outcomes.append(await call_operation(approver, lambda p: p.approvals.list(wanted)))
    return outcomes


async def continue_story(user: Operations, approver: Operations) -> list[Outcome]:
    """Continue runs in every way, with errors."""
    outcomes = list[Outcome]()

    async def do(call: OperationCall) -> None:
        outcomes.append(await call_operation(user, call))

    async def start(words: str) -> tuple[str, list[Any]]:
        run = (await user.runs.create("agent", "payer", RunRequest(words, "s2"))).value
        return run["run_id"], run["approvals"]

    def build(asked: list[Any], **more: Any) -> ContinueRequest:
        decisions = tuple(
            Ruling("approve", each["arguments_hash"], approval_id=each["approval_id"])
            for each in asked
        )
        return ContinueRequest(decisions, **more)

    first, asked = await start("user | user")
    await do(lambda p: p.runs.continue_run("agent", "payer", first, ContinueRequest()))
    await do(lambda p: p.runs.continue_run("agent", "payer", ABSENT, ContinueRequest()))
    await do(lambda p: p.runs.continue_run("agent", "nobody", first, ContinueRequest()))
    named_twice = (Ruling("approve"), Ruling("approve"))
    await do(lambda p: p.runs.continue_run("agent", "payer", first, ContinueRequest(named_twice)))
    await do(
        lambda p: p.runs.continue_run("agent", "payer", first, build(asked, dependencies={"a": 1}))
    )
    again = (await user.runs.get(first)).value["approvals"][1:]
    await do(lambda p: read_continued(p, first, build(again)))
    await do(lambda p: p.runs.continue_run("agent", "payer", first, ContinueRequest()))
    second, asked = await start("user other")
    await do(lambda p: p.runs.continue_run("agent", "payer", second, build(asked)))
    await do(lambda p: read_continued(p, second, build(asked[:1], idempotency_key="c")))
    await do(
        lambda p: p.runs.continue_run("agent", "payer", second, ContinueRequest(background=True))
    )
    await do(lambda p: p.runs.get(second))
    return outcomes


@pytest.mark.parametrize("story", [decide_story, continue_story])
async def test_engines_decide_and_continue_alike(stage: Stage, story: Any) -> None:
    async with stage.open("ann", *USER) as user, stage.open("eve", *APPROVER) as approver:
        outcomes = [normalize(outcome) for outcome in await story(user, approver)]
    stage.compare_engines(story.__name__, outcomes)
    assert {kind for kind, _ in outcomes} == {"answered", "failed"}
