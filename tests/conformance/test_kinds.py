"""The abilities of every kind of agent. The table of docs/agents.md has the results.

`test_COLUMN` is the test of a column; conftest.py gives it the cells of the `TESTED_KINDS`, each
with its interface and its engine. The id of a test names all three: `langgraph-agui-postgres`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cells import (
    ENGINES,
    INTERFACES,
    LACKS,
    Cell,
    choose_engine,
    choose_interface,
    list_interfaces,
)
from tests.conformance.hosted_tools import NO_JSON
from tests.conformance.interfaces import Interface, Record, Start, Verdict
from tests.conformance.server import (
    FUNCTIONS,
    PAYMENT,
    PLAIN_NAMES,
    ConformanceServer,
    find_unstopped,
    read_ledger,
)
from tests.conformance.table import COLUMNS, KINDS, PAGE, RUNNERS, replace_table
from tests.kit.conditions import wait_until

TESTED_KINDS = RUNNERS

PLAIN_AGENTS = (*(f"{kind}-{name}" for kind in RUNNERS for name in PLAIN_NAMES), *FUNCTIONS)
"""Agents whose runs leave no work."""


@pytest.mark.parametrize("agent", PLAIN_AGENTS)
async def test_plain_run_names_no_work(server: ConformanceServer, agent: str) -> None:
    """The first test: its runs are the first ones of the server, too."""
    async with server.connect() as operations:
        assert await find_unstopped(operations, agent) == []


async def test_answer(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-echo", "hello big world"))
    assert (run["status"], run["content"]) == ("COMPLETED", "hello big world")
    assert run["error"] is None
    assert run["stopped_at"] is not None


async def test_stream(cell: Cell, interface: Interface) -> None:
    start = Start(f"{cell.kind}-echo", "hello big world")
    events = [event async for event in interface.read_events(start)]
    own = [event for event in events if event.run_id == events[0].run_id]
    pieces = [event.text for event in own if event.name == "text"]
    assert [events[0].name, events[-1].name] == ["start", "end"]
    assert "".join(pieces) == "hello big world"
    # Text that arrives in one read is one event, so a quick answer may have one piece.
    assert len(pieces) == 1 or cell.is_yes


async def test_tools(cell: Cell, interface: Interface) -> None:
    start = Start(f"{cell.kind}-tool", '{"a": 1, "b": 2}')
    events = [event async for event in interface.read_events(start)]
    names = [event.name for event in events]
    run = await interface.read_run(events[0].run_id)
    calls = await list_calls(interface, run)
    assert (run["status"], read_answer(run)) == ("COMPLETED", "3")
    if not cell.is_yes:
        assert not calls
        return

    assert names.index("call") < names.index("result") < names.index("text")
    (call,) = calls
    assert (call["tool_name"], call["tool_args"]) == ("add", {"a": 1, "b": 2})
    assert (call["result"], call["tool_call_error"]) == ("3", False)


async def test_no_json(cell: Cell, interface: Interface) -> None:
    """A call that has paid is never recorded as one that was not made."""
    payment = {"amount": NO_JSON, "to": cell.kind}
    added = await interface.run(Start(f"{cell.kind}-tool", '{"a": -1, "b": 2}'))
    paid = await interface.run(Start(f"{cell.kind}-pay", json.dumps(payment)))
    paid = await interface.decide(paid, "approve")
    (approval,) = await interface.list_approvals(paid)
    calls = await list_calls(interface, added) + await list_calls(interface, paid)

    assert read_ledger(interface.server).count(f"-1 to {cell.kind}") == 1
    assert approval["execution"] in ("done", "failed")
    assert len(calls) == (0 if cell.kind == "function" else 2)
    if cell.kind == "generator":
        # A generator reports its calls itself, and the refused result ends it before it does.
        calls = calls[:1]
    assert [call["result"] for call in calls if call["result"] in (None, "cancelled")] == []


async def test_history(cell: Cell, interface: Interface) -> None:
    session = f"{cell.kind}-history"
    first = await interface.run(Start(f"{cell.kind}-history", "one", session_id=session))
    second = await interface.run(Start(f"{cell.kind}-history", "two", session_id=session))
    stored = (await interface.operations.sessions.get(session)).value
    said = list_said(second)
    if cell.is_yes:
        assert said == [["user", "one"], ["assistant", first["content"]], ["user", "two"]]
    else:
        ((role, text),) = said
        assert role == "user"
        assert text.endswith("two")
        assert text.index("User input: one") < text.index(f"Workflow output: {first['content']}")
    roles = [each["role"] for each in stored["chat_history"] or [] if each["role"] != "system"]
    assert roles == ["user", "assistant"] * 2


async def test_cancel_text(cell: Cell, interface: Interface) -> None:
    async with interface.begin(Start(f"{cell.kind}-trickle", "go")) as work:
        if cell.is_yes:
            await wait_until(lambda: work.text)
        run = await interface.cancel(work.run_id)
    assert run["status"] == "CANCELLED"
    assert bool(run["content"]) is cell.is_yes
    assert work.text == (run["content"] or "")
    await wait_until(lambda: has_stopped(interface, run))


async def test_cancel_tool(cell: Cell, interface: Interface, tmp_path: Path) -> None:
    file = tmp_path / "held"
    session = f"{cell.kind}-stubborn"
    message = json.dumps({"path": str(file)})
    start = Start(f"{cell.kind}-stubborn", message, session_id=session)
    async with interface.begin(start) as work:
        await wait_until(file.exists)
        run = await interface.cancel(work.run_id)
    # The tool continues, and the record shows that until it has ended.
    assert (run["status"], run["stopped_at"]) == ("CANCELLED", None)
    assert all(call["result"] == "cancelled" for call in run["tools"] or [])
    file.unlink()
    await wait_until(lambda: has_stopped(interface, run))
    assert (await interface.read_run(run["run_id"]))["status"] == "CANCELLED"

    # The session can continue: its next run begins, and can be cancelled, too.
    async with interface.begin(start) as later_work:
        await wait_until(file.exists)
        later_run = await interface.cancel(later_work.run_id)
    file.unlink()
    assert (later_run["session_id"], later_run["status"]) == (session, "CANCELLED")
    await wait_until(lambda: has_stopped(interface, later_run))


async def test_cancel_thread(cell: Cell, interface: Interface, tmp_path: Path) -> None:
    file = tmp_path / "held"
    start = Start(f"{cell.kind}-block", json.dumps({"path": str(file)}))
    async with interface.begin(start) as work:
        await wait_until(file.exists)
        run = await interface.cancel(work.run_id)
    file.unlink()
    assert (run["status"], run["stopped_at"]) == ("CANCELLED", None)


async def test_cancel_started(cell: Cell, interface: Interface, tmp_path: Path) -> None:
    file = tmp_path / "work"
    await check_started_task(
        interface, Start(f"{cell.kind}-started", json.dumps({"path": str(file)})), file
    )


async def test_cancel_member(cell: Cell, interface: Interface, tmp_path: Path) -> None:
    file = tmp_path / "work"
    start = Start(f"{cell.kind}-crew", json.dumps({"path": str(file)}), kind="team")
    await check_started_task(interface, start, file)


async def check_started_task(interface: Interface, start: Start, file: Path) -> None:
    """Cancel a run, or that of its team, while a task that its code started adds to a file."""
    async with interface.begin(start) as work:
        await wait_until(file.exists)
        run = await interface.cancel(work.run_id)
    assert (run["status"], run["holding"]) == ("CANCELLED", [])
    assert run["stopped_at"] is not None
    size = file.stat().st_size
    await asyncio.sleep(0.1)
    assert file.stat().st_size == size


async def test_failure(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-failing", "x"))
    assert run["status"] == "ERROR"
    in_code = cell.kind in ("function", "generator")
    assert run["error"]["code"] == ("AGENT_FAILED" if in_code else "MODEL_UNAVAILABLE")
    assert "secret" not in json.dumps(run)
    # Nobody knows what a failed call has used; the server counts those of configured agents.
    if cell.kind != "configured":
        assert set(run["metrics"].values()) == {None}


async def test_usage(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-echo", "hello big world"))
    if run["metrics"]["input_tokens"] is None:
        run = await read_member(interface, run)
    counted = run["metrics"]
    assert counted["input_tokens"] >= 3
    assert counted["output_tokens"] == 3
    assert counted["total_tokens"] == counted["input_tokens"] + 3


async def test_output(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-output", '{"total": 3}'))
    assert run["status"] == "COMPLETED"
    assert run["output"] == {"total": 3}
    assert json.loads(run["content"]) == {"total": 3}


async def test_context(cell: Cell, interface: Interface) -> None:
    session = f"{cell.kind}-context"
    run = await interface.run(Start(f"{cell.kind}-context", "{}", session_id=session))
    shown = json.loads(read_answer(run))
    assert shown["user_id"] == shown["claims"]["sub"] == interface.user
    assert (shown["run_id"], shown["session_id"]) == (run["run_id"], session)
    assert shown["component_id"] == f"{cell.kind}-context"


async def test_metadata(cell: Cell, interface: Interface) -> None:
    metadata = {"tenant": "north", "limits": [1, 2]}
    run = await interface.run(Start(f"{cell.kind}-context", "{}", metadata=metadata))
    assert json.loads(read_answer(run))["metadata"] == metadata
    assert run["metadata"] == metadata


async def test_member(cell: Cell, interface: Interface) -> None:
    metadata = {"tenant": "north"}
    team = await interface.run(Start(f"{cell.kind}-team", "{}", kind="team", metadata=metadata))
    runs = (await interface.operations.sessions.list_runs(team["session_id"])).value
    shown = json.loads(read_answer(team))
    (member,) = [run for run in runs if run["run_id"] == shown["run_id"]]
    assert (team["status"], member["status"]) == ("COMPLETED", "COMPLETED")
    assert member["parent_run_id"] == team["run_id"]
    assert shown["component_id"] == f"{cell.kind}-context"
    assert (shown["user_id"], shown["metadata"]) == (interface.user, metadata)


async def test_step(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-line", '{"a": 20, "b": 22}', kind="workflow"))
    assert (run["status"], read_answer(run)) == ("COMPLETED", "42")


async def test_approval(cell: Cell, interface: Interface) -> None:
    before = read_ledger(interface.server)
    run = await start_payment(cell, interface)
    assert read_ledger(interface.server) == before
    run = await interface.decide(run, "approve")
    assert (run["status"], read_answer(run)) == ("COMPLETED", "paid 10 to bob")
    assert read_ledger(interface.server) == [*before, "10 to bob"]


async def test_elsewhere(cell: Cell, interface: Interface, paused_runs: dict[str, Record]) -> None:
    run = paused_runs[cell.kind]
    before = read_ledger(interface.server)
    run = await interface.decide(run, "approve")
    if not cell.is_yes:
        assert run["status"] == "ERROR"
        assert read_ledger(interface.server) == before
        return

    assert (run["status"], read_answer(run)) == ("COMPLETED", "paid 10 to bob")
    assert read_ledger(interface.server) == [*before, "10 to bob"]


async def test_rejection(cell: Cell, interface: Interface) -> None:
    before = read_ledger(interface.server)
    run = await start_payment(cell, interface)
    run = await interface.decide(run, "reject", note="too much")
    assert run["status"] == "COMPLETED"
    assert "too much" in run["content"]
    assert "paid" not in run["content"]
    assert read_ledger(interface.server) == before


async def test_edit(cell: Cell, interface: Interface) -> None:
    before = read_ledger(interface.server)
    run = await start_payment(cell, interface)
    run = await interface.decide(run, "approve", arguments={"amount": 5, "to": "carl"})
    assert run["status"] == "COMPLETED"
    # Some kinds report the change to the model, too.
    assert read_answer(run).endswith("paid 5 to carl")
    assert read_ledger(interface.server) == [*before, "5 to carl"]


async def test_calls(cell: Cell, interface: Interface) -> None:
    """Two calls are equal, and the decision about one of them does not reach the other."""
    before = read_ledger(interface.server)
    run = await interface.run(Start(f"{cell.kind}-calls", json.dumps(PAYMENT)))
    assert run["status"] == "PAUSED", run
    approved, rejected = await interface.list_approvals(run, "pending")
    assert approved["arguments"] == rejected["arguments"] == PAYMENT

    verdicts = (Verdict(rejected, "reject"), Verdict(approved, "approve"))
    run = await interface.decide_each(run, *verdicts)
    assert run["status"] == "COMPLETED", run
    assert read_ledger(interface.server) == [*before, "10 to bob"]
    executions = {
        each["approval_id"]: each["execution"] for each in await interface.list_approvals(run)
    }
    assert executions == {approved["approval_id"]: "done", rejected["approval_id"]: None}
    calls = await list_calls(interface, run)
    assert len(calls) == (0 if cell.kind in ("function", "generator") else 2)
    for call in calls:
        is_approved = call["tool_call_id"] == approved["tool_call_id"]
        assert ("paid 10 to bob" in call["result"]) is is_approved


async def test_cancel_paused(cell: Cell, interface: Interface) -> None:
    before = read_ledger(interface.server)
    run = await start_payment(cell, interface)
    run = await interface.cancel(run["run_id"])
    assert run["status"] == "CANCELLED"
    assert [asked["status"] for asked in await interface.list_approvals(run)] == ["cancelled"]
    assert read_ledger(interface.server) == before


async def test_messages(cell: Cell, interface: Interface) -> None:
    """The model asks for the payment of the message, or the message is a run that waits."""
    run = await start_payment(cell, interface)
    sent = await interface.send(run, json.dumps({"amount": 7, "to": "dora"}))
    if not cell.is_yes:
        assert sent["status"] == "next_run"
        assert sent["reason"].endswith("take no messages while they work")
        await interface.cancel(sent["message_id"])
        await interface.cancel(run["run_id"])
        return

    assert sent["status"] == "waiting"
    run = await interface.decide(run, "approve")
    (message,) = (await interface.operations.runs.list_messages(run["run_id"])).value["messages"]
    assert message["status"] == "delivered"
    parts = [each.get("message_id") for each in run["messages"]]
    assert parts.count(sent["message_id"]) == 1
    asked = [each["arguments"] for each in await interface.list_approvals(run, "pending")]
    is_function = cell.kind in ("function", "generator")
    assert asked == ([] if is_function else [{"amount": 7, "to": "dora"}])
    assert run["status"] == ("COMPLETED" if is_function else "PAUSED")
    if run["status"] == "PAUSED":
        await interface.cancel(run["run_id"])


async def test_retry(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-tool", '{"a": 1, "b": 2}'))
    retried = await interface.retry(run, confirmed=not cell.is_yes)
    assert (retried["status"], read_answer(retried)) == ("COMPLETED", "3")
    assert retried["origin_run_id"] == run["run_id"]
    if cell.is_yes:
        assert retried["tools"] == []


async def test_fork(cell: Cell, interface: Interface) -> None:
    run = await interface.run(Start(f"{cell.kind}-history", "one"))
    forked = await interface.fork(run, "two")
    session = forked["session_id"]
    later = await interface.run(Start(f"{cell.kind}-history", "three", session_id=session))
    assert forked["status"] == later["status"] == "COMPLETED"
    assert session != run["session_id"]
    if not cell.is_yes:
        assert len(list_said(forked)) == 1
        return

    conversation = [
        ["user", "one"],
        ["assistant", run["content"]],
        ["user", "two"],
        ["assistant", forked["content"]],
        ["user", "three"],
    ]
    assert list_said(forked) == conversation[:3]
    assert list_said(later) == conversation


def test_cells_cover_every_pair_of_kind_ability_interface_and_engine() -> None:
    for kinds in (RUNNERS, tuple(KINDS)):
        pairs = set[tuple[str, str]]()
        for kind, column in product(kinds, COLUMNS):
            interface = choose_interface(kind, column)
            engine = choose_engine(kind, column)
            assert (interface, column) not in LACKS
            pairs |= {(kind, interface), (kind, engine), (column, engine), (interface, engine)}

        wanted = {*product(kinds, INTERFACES), *product(kinds, ENGINES)}
        wanted |= {*product(COLUMNS, ENGINES), *product(INTERFACES, ENGINES)}
        assert wanted - pairs == {("adk", "postgres")}

        for column in COLUMNS:
            chosen = {choose_interface(kind, column) for kind in kinds}
            # The runners are one kind less than the interfaces.
            assert len(chosen) == min(len(kinds), len(list_interfaces(column))), column


def test_table_of_the_page_is_current() -> None:
    page = PAGE.read_text()
    assert page == replace_table(page), "run: python -m tests.conformance.table"
    names = {f"test_{column.replace('-', '_')}" for column in COLUMNS}
    assert names <= set(globals())


async def start_payment(cell: Cell, interface: Interface) -> Record:
    """Start a run that waits for the approval of its payment."""
    run = await interface.run(Start(f"{cell.kind}-pay", json.dumps(PAYMENT)))
    assert run["status"] == "PAUSED", run
    asked = await interface.find_asked(run)
    assert (asked["tool_name"], asked["arguments"]) == ("pay", PAYMENT)
    return run


async def list_calls(interface: Interface, run: Record) -> list[Record]:
    """Return the calls of a run, or of its only member."""
    if run["tools"] or not run["member_runs"]:
        return list(run["tools"] or [])
    return list((await read_member(interface, run))["tools"])


async def read_member(interface: Interface, run: Record) -> Record:
    """Return the run of the only member, or of the only step, of a run."""
    (run_id,) = run["member_runs"]
    return await interface.read_run(run_id)


async def has_stopped(interface: Interface, run: Record) -> bool:
    return (await interface.read_run(run["run_id"]))["stopped_at"] is not None


def list_said(run: Record) -> list[Any]:
    """Return the messages that the agent repeats as its answer, without those of the system."""
    return [each for each in json.loads(run["content"]) if each[0] != "system"]


def read_answer(run: Record) -> str:
    """Return the content of a run, which is the result of its tool.

    Google ADK gives its models a result inside of an object, and they answer with it.
    """
    with contextlib.suppress(ValueError):
        value = json.loads(run["content"])
        if isinstance(value, dict) and [*value] == ["result"]:
            return value["result"] if isinstance(value["result"], str) else str(value["result"])
    return str(run["content"])
