"""The abilities of every kind of agent, over HTTP. The table of docs/agents.md has the results."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentctl.errors import NeedsConfirmation
from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    CancelRequest,
    ForkRequest,
    MessageRequest,
    RetryRequest,
    RunRequest,
)
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.records.kinds import ComponentKind
from tests.conformance.hosted_tools import NO_JSON
from tests.conformance.server import (
    PAYMENT,
    PLAIN_AGENTS,
    ConformanceServer,
    decide,
    find_unstopped,
    run_component,
    stream_component,
)
from tests.conformance.table import COLUMNS, KINDS, PAGE, REASONS, replace_table
from tests.kit.conditions import PATIENCE, wait_until

CANCEL_SECONDS = 30.0
"""The longest time that a request to cancel may wait for the end."""
"""Seconds within which a cancelled run is final on a busy machine."""

every_kind = pytest.mark.parametrize("kind", KINDS)


def is_yes(kind: str, column: str) -> bool:
    """Return True if the cell of the table is yes, False if it gives a reason."""
    assert column in COLUMNS
    return (kind, column) not in REASONS


@pytest.mark.parametrize("agent", PLAIN_AGENTS)
async def test_plain_run_names_no_work(server: ConformanceServer, agent: str) -> None:
    """The first test: its runs are the first ones of the process, too."""
    async with server.connect() as operations:
        assert await find_unstopped(operations, agent) == []


@every_kind
async def test_answer(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        run = await run_component(operations, "agent", f"{kind}-echo", "hello big world")
    assert (run["status"], run["content"]) == ("COMPLETED", "hello big world")
    assert run["error"] is None
    assert run["stopped_at"] is not None


@every_kind
async def test_stream(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        events = await stream_component(operations, f"{kind}-echo", "hello big world")
    assert [events[0]["event"], events[-1]["event"]] == ["RunStarted", "RunCompleted"]
    assert "".join(list_pieces(events)) == "hello big world"
    # Text that arrives in one read is one event, so a quick answer may have one piece.
    assert len(list_pieces(events)) == 1 or is_yes(kind, "stream")


def list_pieces(events: list[dict[str, Any]]) -> list[str]:
    """Return the text of the run itself, without that of its members."""
    own = [event for event in events if event["run_id"] == events[0]["run_id"]]
    return [event["content"] for event in own if event["event"] == "RunContent"]


@every_kind
async def test_tools(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        events = await stream_component(operations, f"{kind}-tool", '{"a": 1, "b": 2}')
        run = dict((await operations.runs.get(events[0]["run_id"])).value)
        calls = run["tools"] or [
            call
            for _ in run["member_runs"]
            for call in (await get_member(operations, run))["tools"]
        ]
    names = [event["event"] for event in events]
    assert (run["status"], read_answer(run)) == ("COMPLETED", "3")
    if not is_yes(kind, "tools"):
        assert not calls
        return
    assert names.index("ToolCallStarted") < names.index("ToolCallCompleted")
    assert names.index("ToolCallCompleted") < names.index("RunContent")
    (call,) = calls
    assert (call["tool_name"], call["tool_args"]) == ("add", {"a": 1, "b": 2})
    assert (call["result"], call["tool_call_error"]) == ("3", False)


@every_kind
async def test_no_json(server: ConformanceServer, kind: str) -> None:
    """A call that has paid is never recorded as one that was not made."""
    payment = {"amount": NO_JSON, "to": kind}
    async with server.connect() as operations:
        added = await run_component(operations, "agent", f"{kind}-tool", '{"a": -1, "b": 2}')
        paid = await run_component(operations, "agent", f"{kind}-pay", json.dumps(payment))
        page = await operations.approvals.list(ApprovalFilter(run_id=paid["run_id"]))
        (asked,) = page.value["data"]
        ruling = Ruling(
            approval_id=asked["approval_id"],
            decision="approve",
            arguments_hash=asked["arguments_hash"],
        )
        request = ContinueRequest((ruling,))
        await operations.runs.continue_run("agent", f"{kind}-pay", paid["run_id"], request)
        paid = dict((await operations.runs.get(paid["run_id"])).value)
        page = await operations.approvals.list(ApprovalFilter(run_id=paid["run_id"]))
        (approval,) = page.value["data"]
        calls = await list_calls(operations, added) + await list_calls(operations, paid)
    ledger = server.deployment.path.with_name("ledger").read_text().splitlines()
    assert ledger.count(f"-1 to {kind}") == 1
    assert approval["execution"] in ("done", "failed")
    assert len(calls) == (2 if is_yes(kind, "tools") else 0)
    if kind == "generator":
        # A generator reports its calls itself, and the refused result ends it before it does.
        calls = calls[:1]
    assert [call["result"] for call in calls if call["result"] in (None, "cancelled")] == []


async def list_calls(operations: Operations, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a run, or of its only member."""
    if run["tools"] or not run["member_runs"]:
        return list(run["tools"])
    return list((await get_member(operations, run))["tools"])


def read_answer(run: dict[str, Any]) -> str:
    """Return the content of a run, which is the result of its tool.

    Google ADK gives its models a result inside of an object, and they answer with it.
    """
    with contextlib.suppress(ValueError):
        value = json.loads(run["content"])
        if isinstance(value, dict) and [*value] == ["result"]:
            return value["result"] if isinstance(value["result"], str) else str(value["result"])
    return str(run["content"])


async def get_member(operations: Operations, run: dict[str, Any]) -> dict[str, Any]:
    """Return the run of the only member, or of the only step, of a run."""
    (run_id,) = run["member_runs"]
    return dict((await operations.runs.get(run_id)).value)


@every_kind
async def test_history(server: ConformanceServer, kind: str) -> None:
    session = f"{kind}-history"
    async with server.connect() as operations:
        first = await run_component(
            operations, "agent", f"{kind}-history", "one", session_id=session
        )
        second = await run_component(
            operations, "agent", f"{kind}-history", "two", session_id=session
        )
        stored = (await operations.sessions.get(session)).value
    said = [each for each in json.loads(second["content"]) if each[0] != "system"]
    if is_yes(kind, "history"):
        assert said == [["user", "one"], ["assistant", first["content"]], ["user", "two"]]
    else:
        ((role, text),) = said
        assert role == "user"
        assert text.endswith("two")
        assert text.index("User input: one") < text.index(f"Workflow output: {first['content']}")
    roles = [each["role"] for each in stored["chat_history"] or [] if each["role"] != "system"]
    assert roles == ["user", "assistant"] * 2


@every_kind
async def test_cancel_text(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        async with streamed_run(operations, f"{kind}-trickle", "go") as (run_id, events):
            if is_yes(kind, "cancel-text"):
                await wait_until(lambda: any(each["event"] == "RunContent" for each in events))
            run = await cancel_run(operations, f"{kind}-trickle", run_id)
        await wait_until(lambda: events[-1]["event"] == "RunCancelled")

        async def has_stopped() -> bool:
            return (await operations.runs.get(run_id)).value["stopped_at"] is not None

        await wait_until(has_stopped)
    assert run["status"] == "CANCELLED"
    assert bool(run["content"]) is is_yes(kind, "cancel-text")
    assert "".join(list_pieces(events)) == (run["content"] or "")


@every_kind
async def test_cancel_tool(server: ConformanceServer, tmp_path: Path, kind: str) -> None:
    agent = f"{kind}-stubborn"
    session = f"{kind}-stubborn"
    file = tmp_path / "held"
    message = json.dumps({"path": str(file)})
    async with server.connect() as operations:
        async with streamed_run(operations, agent, message, session) as (run_id, events):
            if is_yes(kind, "tools"):
                await wait_until(lambda: any(each["event"] == "ToolCallStarted" for each in events))
            await wait_until(file.exists)
            run = await cancel_run(operations, agent, run_id)
        # The tool continues, and the record shows that until it has ended.
        assert (run["status"], run["stopped_at"]) == ("CANCELLED", None)
        assert all(call["result"] == "cancelled" for call in run["tools"] or [])

        async def has_stopped(run_id: str) -> bool:
            file.unlink(missing_ok=True)
            return (await operations.runs.get(run_id)).value["stopped_at"] is not None

        await wait_until(lambda: has_stopped(run_id))
        assert (await operations.runs.get(run_id)).value["status"] == "CANCELLED"
        # The session can continue. The tool may end before the cancel arrives.
        request = RunRequest(message, session_id=session, background=True)
        again = (await operations.runs.create("agent", agent, request)).value
        cancel = CancelRequest(session, wait=CANCEL_SECONDS)
        ended = (await operations.runs.cancel("agent", agent, again["run_id"], cancel)).value
        assert ended["status"] in ("CANCELLED", "COMPLETED"), ended
        await wait_until(lambda: has_stopped(again["run_id"]))


@every_kind
async def test_cancelled_thread_is_recorded_as_unstopped(
    server: ConformanceServer, tmp_path: Path, kind: str
) -> None:
    agent = f"{kind}-block"
    file = tmp_path / "held"
    message = json.dumps({"path": str(file)})
    async with (
        server.connect() as operations,
        streamed_run(operations, agent, message) as (run_id, events),
    ):
        if is_yes(kind, "tools"):
            await wait_until(lambda: any(each["event"] == "ToolCallStarted" for each in events))
        await wait_until(file.exists)
        run = await cancel_run(operations, agent, run_id)
    file.unlink()
    assert (run["status"], run["stopped_at"]) == ("CANCELLED", None)


@every_kind
async def test_cancel_started(server: ConformanceServer, tmp_path: Path, kind: str) -> None:
    await check_started_task(server, "agent", f"{kind}-started", tmp_path / "work")


@every_kind
async def test_cancel_member(server: ConformanceServer, tmp_path: Path, kind: str) -> None:
    await check_started_task(server, "team", f"{kind}-crew", tmp_path / "work")


async def check_started_task(
    server: ConformanceServer, kind: ComponentKind, component: str, file: Path
) -> None:
    """Cancel a run, or that of its team, while a task that its code started adds to a file."""
    async with server.connect() as operations:
        request = RunRequest(json.dumps({"path": str(file)}), background=True)
        started = (await operations.runs.create(kind, component, request)).value
        await wait_until(file.exists)
        run = await cancel_run(operations, component, started["run_id"], kind)
    assert (run["status"], run["holding"]) == ("CANCELLED", [])
    assert run["stopped_at"] is not None
    size = file.stat().st_size
    await asyncio.sleep(0.1)
    assert file.stat().st_size == size


@every_kind
async def test_failure(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        run = await run_component(operations, "agent", f"{kind}-failing", "x")
    assert run["status"] == "ERROR"
    in_code = kind in ("function", "generator")
    assert run["error"]["code"] == ("AGENT_FAILED" if in_code else "MODEL_UNAVAILABLE")
    assert "secret" not in json.dumps(run)
    # Nobody knows what a failed call has used; the server counts those of configured agents.
    if kind != "configured":
        assert set(run["metrics"].values()) == {None}


@every_kind
async def test_usage(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        run = await run_component(operations, "agent", f"{kind}-echo", "hello big world")
        if run["metrics"]["input_tokens"] is None:
            run = await get_member(operations, run)
    counted = run["metrics"]
    assert counted["input_tokens"] >= 3
    assert counted["output_tokens"] == 3
    assert counted["total_tokens"] == counted["input_tokens"] + 3


@every_kind
async def test_output(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        run = await run_component(operations, "agent", f"{kind}-output", '{"total": 3}')
    assert run["status"] == "COMPLETED"
    assert run["output"] == {"total": 3}
    assert json.loads(run["content"]) == {"total": 3}


@every_kind
async def test_context(server: ConformanceServer, kind: str) -> None:
    async with server.connect("bob") as operations:
        run = await run_component(
            operations, "agent", f"{kind}-context", "{}", session_id=f"{kind}-context"
        )
    shown = json.loads(read_answer(run))
    assert shown["user_id"] == shown["claims"]["sub"] == "bob"
    assert (shown["run_id"], shown["session_id"]) == (run["run_id"], f"{kind}-context")
    assert shown["component_id"] == f"{kind}-context"


@every_kind
async def test_metadata(server: ConformanceServer, kind: str) -> None:
    metadata = {"tenant": "north", "limits": [1, 2]}
    async with server.connect() as operations:
        run = await run_component(operations, "agent", f"{kind}-context", "{}", metadata=metadata)
    assert json.loads(read_answer(run))["metadata"] == metadata
    assert run["metadata"] == metadata


@every_kind
async def test_member(server: ConformanceServer, kind: str) -> None:
    async with server.connect("bob") as operations:
        team = await run_component(
            operations, "team", f"{kind}-team", "{}", metadata={"tenant": "north"}
        )
        runs = (await operations.sessions.list_runs(team["session_id"])).value
    shown = json.loads(read_answer(team))
    (member,) = [run for run in runs if run["run_id"] == shown["run_id"]]
    assert (team["status"], member["status"]) == ("COMPLETED", "COMPLETED")
    assert member["parent_run_id"] == team["run_id"]
    assert shown["component_id"] == f"{kind}-context"
    assert (shown["user_id"], shown["metadata"]) == ("bob", {"tenant": "north"})


@every_kind
async def test_step(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        run = await run_component(operations, "workflow", f"{kind}-line", '{"a": 20, "b": 22}')
    assert (run["status"], read_answer(run)) == ("COMPLETED", "42")


def read_ledger(server: ConformanceServer) -> list[str]:
    """Return the payments that tools have made, oldest first."""
    ledger = server.deployment.path.with_name("ledger")
    return ledger.read_text().splitlines() if ledger.exists() else []


async def start_payment(operations: Operations, kind: str, column: str) -> dict[str, Any] | None:
    """Start a run that waits for an approval; None if the kind cannot wait."""
    run = await run_component(operations, "agent", f"{kind}-pay", json.dumps(PAYMENT))
    if is_yes(kind, column):
        assert run["status"] == "PAUSED", run
        return run
    assert run["error"]["code"] == "INTERRUPTED"
    return None


@every_kind
async def test_approval(server: ConformanceServer, kind: str) -> None:
    before = read_ledger(server)
    async with server.connect() as operations:
        run = await start_payment(operations, kind, "approval")
        if run is not None:
            assert read_ledger(server) == before
            run = await decide(operations, run, decision="approve")
            assert (run["status"], read_answer(run)) == ("COMPLETED", "paid 10 to bob")
            assert read_ledger(server) == [*before, "10 to bob"]


@every_kind
async def test_elsewhere(
    server: ConformanceServer, paused_runs: dict[str, dict[str, Any]], kind: str
) -> None:
    run = paused_runs[kind]
    before = read_ledger(server)
    if run["status"] == "PAUSED":
        async with server.connect() as operations:
            run = await decide(operations, run, decision="approve")
    if not is_yes(kind, "elsewhere"):
        assert run["status"] == "ERROR"
        assert read_ledger(server) == before
        return
    assert (run["status"], read_answer(run)) == ("COMPLETED", "paid 10 to bob")
    assert read_ledger(server) == [*before, "10 to bob"]


@every_kind
async def test_rejection(server: ConformanceServer, kind: str) -> None:
    before = read_ledger(server)
    async with server.connect() as operations:
        run = await start_payment(operations, kind, "rejection")
        if run is not None:
            run = await decide(operations, run, decision="reject", note="too much")
            assert run["status"] == "COMPLETED"
            assert "too much" in run["content"]
            assert "paid" not in run["content"]
    assert read_ledger(server) == before


@every_kind
async def test_edit(server: ConformanceServer, kind: str) -> None:
    before = read_ledger(server)
    async with server.connect() as operations:
        run = await start_payment(operations, kind, "edit")
        if run is not None:
            edited = {"amount": 5, "to": "carl"}
            run = await decide(operations, run, decision="approve", arguments=edited)
            assert run["status"] == "COMPLETED"
            # Some kinds report the change to the model, too.
            assert read_answer(run).endswith("paid 5 to carl")
            assert read_ledger(server) == [*before, "5 to carl"]


@every_kind
async def test_cancel_paused(server: ConformanceServer, kind: str) -> None:
    before = read_ledger(server)
    async with server.connect() as operations:
        run = await start_payment(operations, kind, "cancel-paused")
        if run is not None:
            run = await cancel_run(operations, f"{kind}-pay", run["run_id"])
            page = await operations.approvals.list(ApprovalFilter(run_id=run["run_id"]))
            assert run["status"] == "CANCELLED"
            assert [asked["status"] for asked in page.value["data"]] == ["cancelled"]
    assert read_ledger(server) == before


@every_kind
async def test_messages(server: ConformanceServer, kind: str) -> None:
    """The model asks for the payment of the message, or the message is a run that waits."""
    agent = f"{kind}-pay"
    async with server.connect() as operations:
        run = await start_payment(operations, kind, "approval")
        assert run is not None
        request = MessageRequest(json.dumps({"amount": 7, "to": "dora"}))
        sent = (await operations.runs.send_message(run["run_id"], request)).value
        if not is_yes(kind, "messages"):
            assert sent["status"] == "next_run"
            assert sent["reason"].endswith("take no messages while they work")
            await cancel_run(operations, agent, sent["message_id"])
            await cancel_run(operations, agent, run["run_id"])
            return

        assert sent["status"] == "waiting"
        run = await decide(operations, run, decision="approve")
        (message,) = (await operations.runs.list_messages(run["run_id"])).value["messages"]
        assert message["status"] == "delivered"
        parts = [each.get("message_id") for each in run["messages"]]
        assert parts.count(sent["message_id"]) == 1
        page = await operations.approvals.list(
            ApprovalFilter(run_id=run["run_id"], status="pending")
        )
        asked = [each["arguments"] for each in page.value["data"]]
        is_function = kind in ("function", "generator")
        assert asked == ([] if is_function else [{"amount": 7, "to": "dora"}])
        assert run["status"] == ("COMPLETED" if is_function else "PAUSED")
        if run["status"] == "PAUSED":
            await cancel_run(operations, agent, run["run_id"])


@every_kind
async def test_retry(server: ConformanceServer, kind: str) -> None:
    async with server.connect() as operations:
        run = await run_component(operations, "agent", f"{kind}-tool", '{"a": 1, "b": 2}')
        place = ("agent", f"{kind}-tool", run["run_id"])
        if is_yes(kind, "retry"):
            retried = (await operations.runs.retry(*place, RetryRequest())).value  # type: ignore[arg-type]
            assert retried["tools"] == []
        else:
            with pytest.raises(NeedsConfirmation) as refused:
                await operations.runs.retry(*place, RetryRequest())  # type: ignore[arg-type]
            plan = refused.value.plan
            assert (plan["at"], plan["runs_code"]) == (0, True)
            request = RetryRequest(confirm=str(plan["confirm"]))
            retried = (await operations.runs.retry(*place, request)).value  # type: ignore[arg-type]
    assert (retried["status"], read_answer(retried)) == ("COMPLETED", "3")
    assert retried["origin_run_id"] == run["run_id"]


@every_kind
async def test_fork(server: ConformanceServer, kind: str) -> None:
    agent = f"{kind}-history"
    async with server.connect() as operations:
        run = await run_component(operations, "agent", agent, "one")
        request = ForkRequest(at=len(run["messages"]), message="two")
        forked = (await operations.runs.fork("agent", agent, run["run_id"], request)).value
        session = forked["session_id"]
        later = await run_component(operations, "agent", agent, "three", session_id=session)
    assert forked["status"] == later["status"] == "COMPLETED"
    assert session != run["session_id"]
    if not is_yes(kind, "fork"):
        assert len([each for each in json.loads(forked["content"]) if each[0] != "system"]) == 1
        return
    conversation = [
        ["user", "one"],
        ["assistant", run["content"]],
        ["user", "two"],
        ["assistant", forked["content"]],
        ["user", "three"],
    ]
    for length, record in ((3, forked), (5, later)):
        said = [each for each in json.loads(record["content"]) if each[0] != "system"]
        assert said == conversation[:length]


def test_table_of_the_page_is_current() -> None:
    page = PAGE.read_text()
    assert page == replace_table(page), "run: python -m tests.conformance.table"
    names = {f"test_{column.replace('-', '_')}" for column in COLUMNS}
    assert names <= set(globals())


@contextlib.asynccontextmanager
async def streamed_run(
    operations: Operations, agent: str, message: str, session_id: str | None = None
) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Start a streamed run; yield its id and the list that collects its events."""
    events: list[dict[str, Any]] = []

    async def collect() -> None:
        request = RunRequest(message, session_id=session_id)
        async for event in operations.runs.stream("agent", agent, request):
            events.append(json.loads(event.data))

    collecting = asyncio.create_task(collect())
    try:
        await wait_until(lambda: events or collecting.done())
        yield events[0]["run_id"], events
        await asyncio.wait_for(collecting, PATIENCE)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def cancel_run(
    operations: Operations, component: str, run_id: str, kind: ComponentKind = "agent"
) -> dict[str, Any]:
    """Cancel a run, wait for its end, and return its record."""
    session = (await operations.runs.get(run_id)).value["session_id"]
    request = CancelRequest(session, wait=CANCEL_SECONDS)
    result = (await operations.runs.cancel(kind, component, run_id, request)).value
    assert result["cancel"] == "stopped", result
    return dict((await operations.runs.get(run_id)).value)
