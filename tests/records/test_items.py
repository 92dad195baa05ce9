"""The items of runs, from records and from events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.errors import InvalidResponse
from agentctl.records.events import EVENT_NAMES, EventKind, find_event_kind, parse_event
from agentctl.records.items import CANCELLED_RESULT, build_call, build_items, cut_item
from agentctl.records.run_reader import RunReader
from agentctl.transcripts.model import DrawnCall

TEAM = "r1"
MEMBER = "r2"
CALL = {"tool_call_id": "c1", "tool_name": "add", "tool_args": {"a": 1}}
DELEGATION = {
    "tool_call_id": "c2",
    "tool_name": "delegate_task_to_member",
    "tool_args": {"member_id": "writer", "task": "Write"},
}


def read(reader: RunReader, name: str, run_id: str = TEAM, **data: Any) -> list[Any]:
    """Apply an event of the team, or of its member."""
    ids = {"team_id": "desk"} if run_id == TEAM else {"agent_id": "writer", "parent_run_id": TEAM}
    body = {"event": name, "run_id": run_id, "at": "2026-11-20T08:18:10.000000Z", **ids, **data}
    return reader.apply(parse_event(name, json.dumps(body)))


def test_every_name_has_one_kind() -> None:
    for names in EVENT_NAMES.values():
        for kind, name in names.items():
            assert find_event_kind(name) is kind
    assert EVENT_NAMES["team"][EventKind.CONTENT] == "TeamRunContent"
    assert EVENT_NAMES["team"][EventKind.TOOL_CALL_STARTED] == "TeamToolCallStarted"
    assert EVENT_NAMES["workflow"][EventKind.FAILED] == "WorkflowError"
    assert find_event_kind("ModelRequestCompleted") is None


@pytest.mark.parametrize("data", ["", "[]", "{", '{"run_id":1}', '{"run_id":"r","tool":[]}'])
def test_malformed_event_is_an_error(data: str) -> None:
    with pytest.raises(InvalidResponse, match="an event"):
        parse_event("RunContent", data)


def test_member_takes_the_place_of_its_delegation() -> None:
    reader = RunReader()
    read(reader, "TeamRunStarted")
    read(reader, "TeamRunContent", content="I ask ")
    assert read(reader, "TeamRunContent", content="writer.") == [(TEAM, 0, "writer.")]
    read(reader, "TeamToolCallStarted", tool=DELEGATION | {"result": None})
    assert reader.runs[TEAM].items[1]["type"] == "tool_call"
    assert [change[:2] for change in read(reader, "RunStarted", MEMBER)] == [
        (MEMBER, None), (TEAM, 1)
    ]  # fmt: skip
    read(reader, "ToolCallStarted", MEMBER, tool=CALL | {"result": None})
    read(reader, "ToolCallCompleted", MEMBER, tool=CALL | {"result": "1", "tool_call_error": False})
    error = {"code": "MODEL_TIMEOUT", "detail": "late"}
    assert (TEAM, 1, None) in read(reader, "RunError", MEMBER, error=error)
    assert not read(reader, "TeamToolCallCompleted", tool=DELEGATION | {"result": "x"})
    read(reader, "TeamRunContent", content="Done.")

    first, member, last = reader.runs[TEAM].items
    assert (first, last) == (
        {"type": "text", "text": "I ask writer."}, {"type": "text", "text": "Done."}
    )  # fmt: skip
    assert member["type"] == "member"
    assert (member["run_id"], member["task"]) == (MEMBER, "Write")
    assert member["run"] is not None
    assert member["run"]["phase"]["sentence"] == "MODEL_TIMEOUT: late"
    (call,) = reader.runs[MEMBER].items
    assert call["type"] == "tool_call"
    assert (call["status"], call["result"]) == ("done", "1")


def test_open_call_of_an_ended_run_is_cancelled() -> None:
    reader = RunReader()
    read(reader, "TeamRunStarted")
    read(reader, "TeamToolCallStarted", tool=CALL | {"result": None})
    assert (TEAM, 0, None) in read(reader, "TeamRunCancelled", reason="enough")
    (call,) = reader.runs[TEAM].items
    assert call["type"] == "tool_call"
    assert call["status"] == "cancelled"
    assert reader.runs[TEAM].record["phase"]["name"] == "stopped"


def test_call_that_a_cancel_cut_off_has_not_failed() -> None:
    tool = CALL | {"result": CANCELLED_RESULT, "tool_call_error": True}
    statuses = {
        status: build_call("c", tool, None, None, status)["status"]
        for status in ("CANCELLED", "COMPLETED", "ERROR")
    }
    assert statuses == {"CANCELLED": "cancelled", "COMPLETED": "failed", "ERROR": "failed"}


def test_unknown_events_change_nothing() -> None:
    reader = RunReader()
    assert read(reader, "TeamRunStarted") == [(TEAM, None, None)]
    assert read(reader, "TeamModelRequestStarted") == []
    assert reader.runs[TEAM].items == []


OMISSION = {"kind": "runs", "count": 3, "first": "r1", "last": "r3", "size": 900}

FAILED_CALL = CALL | {"result": "2", "tool_call_error": True}

AT = "2026-11-20T08:18:10.000000Z"

RECORD: dict[str, Any] = {
    "run_id": TEAM,
    "team_id": "desk",
    "status": "COMPLETED",
    "content": "No.",
    "reasoning_content": "Hm.",
    "tools": [FAILED_CALL],
    "spans": [{"kind": "tool", "id": "c1", "started_at": AT, "finished_at": AT}],
    "messages": [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "name": "add"}],
            "compacted": {"omissions": [OMISSION], "window": None},
        },
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "No."},
    ],
}
"""A run that thinks, calls a tool that fails, and answers."""


def test_record_and_events_have_the_same_items() -> None:
    reader = RunReader()
    read(reader, "TeamRunStarted")
    read(reader, "TeamReasoningContentDelta", reasoning_content="Hm.")
    # The first request was refused as too large.
    for omissions in ([OMISSION | {"count": 1}], [OMISSION]):
        read(reader, "TeamContextCompacted", omissions=omissions)
    read(reader, "TeamToolCallStarted", tool=CALL | {"result": None})
    read(reader, "TeamToolCallCompleted", tool=FAILED_CALL)
    read(reader, "TeamRunContent", content="No.")
    read(reader, "TeamRunCompleted", content="No.")

    items = build_items(RECORD)
    assert items == reader.runs[TEAM].items
    assert items[1]["text"] == "not shown whole to the model: earlier runs: 3 (900 bytes)"


def test_long_texts_are_cut_and_thinking_is_not() -> None:
    cut = cut_item({"type": "text", "text": "12345"}, 2)
    assert cut == {"type": "text", "text": "12", "truncated": {"characters": 5}}
    assert cut_item({"type": "thinking", "text": "12345"}, 2)["text"] == "12345"  # type: ignore[typeddict-item]


ASKED = {
    "approval_id": "a1",
    "kind": "approval",
    "status": "pending",
    "policy": "other",
    "tool_call_id": "c1",
    "tool_name": "add",
    "arguments": {"a": 1},
    "arguments_hash": "sha256:00",
}
DECIDED = ASKED | {
    "status": "approved",
    "created_at": "2026-11-20T08:18:10.000000Z",
    "decided_at": "2026-11-20T08:20:10.000000Z",
    "decided_by": "eve",
    "note": None,
}


def test_pause_and_decision_are_shown_at_the_call() -> None:
    reader = RunReader()
    read(reader, "TeamRunStarted")
    read(reader, "TeamRunContent", content="I add.")
    read(reader, "TeamRunPaused", approvals=[ASKED])
    run = reader.runs[TEAM]
    _, call = run.items
    assert (call["type"], call["status"]) == ("tool_call", "waiting")  # type: ignore[typeddict-item]
    assert run.record["phase"]["words"] == "paused"
    assert "approval of add" in run.record["phase"]["sentence"]

    read(reader, "TeamRunContinued", attempt=2, content="I add.", approvals=[DECIDED])
    read(reader, "TeamToolCallStarted", tool=CALL | {"result": None})
    read(reader, "TeamToolCallCompleted", tool=CALL | {"result": "2", "tool_call_error": False})
    assert len(run.items) == 2
    item: Any = run.items[1]
    assert (item["status"], item["result"]) == ("done", "2")
    assert item["approval"]["decided_by"] == "eve"
    assert DrawnCall.of(item).decision == "approved by eve after 2 min"
    record = {
        "run_id": TEAM, "team_id": "desk", "status": "COMPLETED", "content": "I add.",
        "tools": [CALL | {"result": "2", "tool_call_error": False}],
        "messages": [{"role": "assistant", "content": "I add.", "tool_calls": [{"id": "c1"}]}],
        "approvals": [DECIDED | {"run_id": TEAM, "execution": "done"}],
    }  # fmt: skip
    (text, same) = build_items(record)
    assert (text, same["status"]) == (run.items[0], "done")  # type: ignore[typeddict-item]
    paused = record | {"status": "PAUSED", "tools": [], "approvals": [ASKED | {"run_id": TEAM}]}
    assert [item.get("status") for item in build_items(paused)] == [None, "waiting"]


def test_repeated_leg_replaces_the_text_of_the_lost_one() -> None:
    reader = RunReader()
    read(reader, "TeamRunStarted")
    read(reader, "TeamRunContent", content="Before.")
    read(reader, "TeamRunPaused", approvals=[ASKED])
    for text in ("Lost.", "After."):
        read(reader, "TeamRunContinued", content="Before.", approvals=[DECIDED])
        read(reader, "TeamRunContent", content=text)
    texts = [item["text"] for item in reader.runs[TEAM].items if item["type"] == "text"]
    assert "".join(texts) == "Before.After."
