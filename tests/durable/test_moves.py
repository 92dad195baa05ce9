"""Durable runs of each kind go on in another server after a stop and after a death."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.durable.agents import DURABLE, FUNCTION, FUNCTION_CODE, LIBRARIES, MCP, TOGETHER
from tests.durable.moves import FIRST, SECOND, Moved, Start, move
from tests.kit.deployment import SQLITE_DATABASES
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import postgres_schemas
from tests.kit.site import answer, call, create_site

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

ON_POSTGRESQL = pytest.param(
    "postgresql", marks=pytest.mark.skipif(not LONG, reason="the long mode: AGENTCTL_TEST_LONG=1")
)


def cross(barrier: str, name: str = "cross") -> dict[str, Any]:
    return call("cross", f"{name}-{barrier}", barrier=barrier)


def look(barrier: str) -> dict[str, Any]:
    return call("look", f"look-{barrier}", barrier=barrier)


def note(text: str) -> dict[str, Any]:
    return call("note", f"note-{text}", text=text)


def delegate(member: str, plan: list[dict[str, Any]], call_id: str) -> dict[str, Any]:
    return call("delegate_task_to_member", call_id, member_id=member, task=json.dumps(plan))


WALK = [answer(note("walk")), answer(look(FIRST)), answer(cross(SECOND)), answer(text="walked")]
RUN = [answer(note("run"), look(FIRST)), answer(look(SECOND)), answer(text="ran")]
SHORT = [answer(note("short")), answer(text="short")]
TROOP = [
    answer(note("begin"), delegate("runner", SHORT, "d1")),
    answer(delegate("walker", WALK, "d2"), delegate("runner", RUN, "d3"), note("both")),
    answer(note("end")),
    answer(text="done"),
]
LAST = [*RUN[:-1], answer(text=json.dumps(SHORT))]
STEPS = [answer(note("one")), answer(text=json.dumps(LAST))]
SINGLE = [
    answer(note("bad"), note("good")),
    answer(look(FIRST), cross(FIRST), note("beside")),
    answer(note("between")),
    answer(look(SECOND), cross(SECOND), note("with")),
    answer(note("end")),
    answer(text="done"),
]

READING = [
    answer(note("read")),
    answer(look(FIRST), call("read_tool_result", "read-1", id="note-read")),
    answer(look(SECOND), call("read_tool_result", "read-2", id="look-first")),
    answer(call("read_tool_result", "read-3", id="look-second")),
    answer(call("read_tool_result", "read-4", id="note-walk")),
    answer(text="read"),
]

FROM_SERVER = json.loads(json.dumps(SINGLE).replace('"name": "', '"name": "bars_'))

AT_FIRST = ("look first", "cross first")
AT_SECOND = ("look second", "cross second")
WITH_NOTES = (*AT_SECOND, *["note"] * 5)

STARTS = {
    "agent": Start("agent", "walker", SINGLE, AT_FIRST, WITH_NOTES),
    "function": Start("agent", "function", "go", AT_FIRST, (*AT_SECOND, *["note"] * 4)),
    "pydantic-ai": Start("agent", "typed", SINGLE, AT_FIRST, WITH_NOTES),
    "mcp": Start("agent", "client", FROM_SERVER, AT_FIRST, WITH_NOTES, "of-the-server"),
    "langgraph": Start("agent", "tasks", SINGLE, AT_FIRST, WITH_NOTES),
    "reading": Start("agent", "tasks", READING, ("look first",), ("look second", "note")),
    "tool node": Start("agent", "nodes", SINGLE, AT_FIRST, WITH_NOTES),
    "approvals": Start("agent", "gated", SINGLE, AT_FIRST, WITH_NOTES, asks=True),
    "approvals, tool node": Start("agent", "gated-nodes", SINGLE, AT_FIRST, WITH_NOTES, asks=True),
    "approvals, retry": Start("agent", "gated", SINGLE, AT_FIRST, WITH_NOTES, asks=True),
    "questions": Start(
        "agent", "questions", "go", AT_FIRST, (*AT_SECOND, "note", "note"), asks=True
    ),
    "coordinate": Start(
        "team", "heads", [answer(delegate("troop", TROOP, "d0"))], AT_FIRST[:1], AT_SECOND
    ),
    "route": Start("team", "window", f"{json.dumps(WALK)} walker", AT_FIRST[:1], AT_SECOND[1:]),
    "broadcast": Start("team", "circle", RUN, AT_FIRST[:1], AT_SECOND[:1]),
    "workflow": Start("workflow", "track", STEPS, AT_FIRST[:1], AT_SECOND[:1]),
}


@pytest.fixture(scope="module", params=["sqlite", ON_POSTGRESQL])
def databases(request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    if request.param == "sqlite":
        yield SQLITE_DATABASES
        return
    with postgres_schemas(request.getfixturevalue("postgres_url")) as databases:
        yield databases


@pytest.fixture(scope="module")
def moved(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    databases: Mapping[str, str],
) -> Iterator[Moved]:
    folder: Path = tmp_path_factory.mktemp("moves")
    for name in ("crossings.py", "library_agents.py"):
        (folder / name).write_text(Path(__file__).with_name(name).read_text())
    (folder / "durable_functions.py").write_text(FUNCTION_CODE)
    mcp = MCP.format(
        python=sys.executable,
        server=Path(__file__).with_name("barrier_server.py"),
        folder=folder,
        session=STARTS["mcp"].session_id,
    )
    extra = DURABLE + FUNCTION + TOGETHER + LIBRARIES + mcp
    site = create_site(folder, model_endpoint.base_url, extra=extra, databases=databases)
    with move(site, STARTS) as moved:
        yield moved


async def finish(moved: Moved, name: str) -> tuple[dict[str, Any], Counter[str]]:
    """Answer what a run asks, wait for its end, and return its record and its calls."""
    site = moved.site
    run = moved.runs[name]
    wanted = ("PAUSED", "COMPLETED", "ERROR", "CANCELLED")
    record = await site.wait_for_end(moved.server, run["run_id"], *wanted)
    asks = AT_SECOND[1] in STARTS[name].second
    assert (record["status"] == "PAUSED") == asks, record
    if asks:
        (asked,) = await site.pending(run["run_id"])
        assert (asked.kind, asked.tool_name.removeprefix("bars_")) == ("outcome", "cross")
        assert SECOND in asked.arguments
        if name.endswith("retry"):
            await site.decide(moved.server, run["run_id"], "retry")
        else:
            await site.decide(moved.server, run["run_id"], "complete", result="crossed by hand")
        if name.startswith("approvals"):
            await site.wait_for_end(moved.server, run["run_id"], "PAUSED", "ERROR")
            await site.decide(moved.server, run["run_id"], "approve", "note")
        record = await site.wait_for_end(moved.server, run["run_id"])
    assert record["status"] == "COMPLETED", record
    return record, Counter(site.tools_called(run))


def count_starts(events: list[dict[str, Any]]) -> Counter[str]:
    """Return how often the start of each call was published."""
    starts = (event for event in events if event["event"].endswith("ToolCallStarted"))
    return Counter(event["tool"]["tool_call_id"] for event in starts)


@pytest.mark.parametrize(
    "name",
    [
        "agent",
        "mcp",
        "function",
        "pydantic-ai",
        "langgraph",
        "tool node",
        "approvals",
        "approvals, tool node",
    ],
)
async def test_finished_calls_are_not_made_again(moved: Moved, name: str) -> None:
    record, calls = await finish(moved, name)
    # The idempotent call that was under way at the death is made again, and no other one.
    assert calls == {
        "note": 6, "look first": 1, "cross first": 1, "look second": 2, "cross second": 1,
    }  # fmt: skip
    ids = {entry["call_id"] for entry in moved.site.ledger(moved.runs[name])}
    assert len(ids) == (1 if name == "mcp" else 10)
    if name == "function":
        assert record["content"] == "crossed by hand"
        return
    results = {tool["tool_call_id"]: tool["result"] for tool in record["tools"]}
    assert results["cross-second"] == "crossed by hand"
    assert results["look-first"] == "looked first"
    assert results["note-with"] == "noted with" or name == "mcp"
    roles = [message["role"] for message in record["messages"]]
    turns = [role for count in (2, 3, 1, 3, 1) for role in ("assistant", *["tool"] * count)]
    assert roles == ["user", *turns, "assistant"]
    events = await moved.read_events(name)
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    started = count_starts(events)
    # Nothing is published twice after the stop.
    assert started["look-first"] == started["note-good"] == started["note-between"] == 1
    if STARTS[name].asks:
        notes = ["bad", "beside", "between", "good", "with"]
        assert results["note-end"] == f"{notes} {notes}"
        await check_approvals(moved, name)


async def check_approvals(moved: Moved, name: str) -> None:
    """Check that each call was approved once, and that the end of each is stored."""
    rows = await moved.site.approvals(moved.runs[name]["run_id"])
    assert Counter((row.kind, row.tool_name) for row in rows) == {
        ("approval", "note"): 6, ("approval", "cross"): 2, ("approval", "look"): 2,
        ("input", "interrupt"): 1, ("outcome", "cross"): 1,
    }  # fmt: skip
    assert {row.execution for row in rows if row.kind == "approval"} == {"done"}


async def test_approved_call_is_made_again_without_another_approval(moved: Moved) -> None:
    record, calls = await finish(moved, "approvals, retry")
    assert calls["cross second"] == 2
    results = {tool["tool_call_id"]: tool["result"] for tool in record["tools"]}
    assert results["cross-second"] == "crossed second"
    await check_approvals(moved, "approvals, retry")


async def test_results_before_a_move_can_be_read_after_it(moved: Moved) -> None:
    record, _ = await finish(moved, "reading")
    results = [tool["result"] for tool in record["tools"] if tool["tool_name"][0] == "r"]
    assert results == [
        "[Characters 0 to 10 of 10]\nnoted read",
        "[Characters 0 to 12 of 12]\nlooked first",
        "[Characters 0 to 13 of 13]\nlooked second",
        "There is no result note-walk",  # That of another session.
    ]


async def test_questions_are_not_asked_again(moved: Moved) -> None:
    record, calls = await finish(moved, "questions")
    assert calls == {
        "note": 2, "look first": 1, "cross first": 1, "look second": 2, "cross second": 1,
    }  # fmt: skip
    asked = await moved.site.approvals(record["run_id"])
    assert [row.kind for row in asked] == ["input", "input", "outcome"]
    assert record["content"].endswith("left crossed by hand")


async def test_members_of_members_go_on(moved: Moved) -> None:
    record, calls = await finish(moved, "coordinate")
    assert calls == {"note": 6, "look first": 2, "look second": 2, "cross second": 1}
    (result,) = [tool["result"] for tool in record["tools"]]
    assert (record["content"], result) == ("done", "done")
    assert await moved.site.statuses(record) == ["COMPLETED"] * 5
    events = await moved.read_events("coordinate")
    started = count_starts(events)
    # Two members look through the first barrier.
    assert (started["d0"], started["d1"], started["look-first"]) == (2, 1, 2)


async def test_route_and_broadcast_go_on(moved: Moved) -> None:
    route, calls = await finish(moved, "route")
    assert calls == {"note": 1, "look first": 1, "cross second": 1}
    assert route["content"] == "walked"
    broadcast, calls = await finish(moved, "broadcast")
    assert calls == {"note": 2, "look first": 2, "look second": 4}
    assert broadcast["content"].endswith("walker (walker):\nran\n\nrunner (runner):\nran")


async def test_steps_of_a_workflow_keep_their_output(moved: Moved) -> None:
    record, calls = await finish(moved, "workflow")
    assert calls == {"note": 3, "look first": 1, "look second": 2}
    assert record["content"] == "short"
    events = await moved.read_events("workflow")
    steps = [(event["event"], event["step_index"]) for event in events if "Step" in event["event"]]
    assert sorted(steps) == sorted(
        (name, step) for name in ("StepStarted", "StepCompleted") for step in range(3)
    )
    spans = [(span["name"], span["status"]) for span in record["spans"] if span["kind"] == "step"]
    assert spans == [("walk", "completed"), ("run", "completed"), ("meet", "completed")]
