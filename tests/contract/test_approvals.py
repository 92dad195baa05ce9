"""Continuations of paused runs on both engines: equal except ids, times and hashes.

`tests/contract/table/approvals.py` has the decisions.
"""

from __future__ import annotations

from typing import Any

from agentctl.interface.operations import Operations
from agentctl.interface.requests import RunRequest, StreamEvent
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from tests.contract.stories import (
    OperationCall,
    Outcome,
    Stage,
    call_operation,
    normalize,
    read_events,
)

USER = ("agents:run", "agents:read", "sessions:read")
ABSENT = "01900000-0000-7000-8000-000000000000"


async def read_continued(operations: Operations, run_id: str, request: ContinueRequest) -> Any:
    """Return the events of a continuation, with numbers from 0."""
    events = operations.runs.stream_continued("agent", "payer", run_id, request)
    first: list[int] = []

    async def renumber() -> Any:
        async for event in events:
            first.append(event.seq)
            yield StreamEvent(event.seq - first[0], event.name, event.data)

    return await read_events(renumber())


async def continue_story(user: Operations) -> list[Outcome]:
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


async def test_engines_continue_runs_alike(stage: Stage) -> None:
    async with stage.open("ann", *USER) as user:
        outcomes = [normalize(outcome) for outcome in await continue_story(user)]
    stage.compare_engines(continue_story.__name__, outcomes)
    assert {kind for kind, _ in outcomes} == {"answered", "failed"}
