"""The rules of AG-UI 1.0 for a stream, from the schemas and the checks of `@ag-ui/client`.

`compat/test_agui_client.py` has the real client read the same kinds of streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

Event = dict[str, Any]

TEXT: type | tuple[type, ...] = str
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "RUN_STARTED": ({"threadId": str, "runId": str}, {"protocolVersion": str}),
    "RUN_FINISHED": (
        {"threadId": str, "runId": str},
        {"outcome": dict, "usage": list, "result": object},
    ),
    "RUN_ERROR": ({"message": str}, {"code": str}),
    "TEXT_MESSAGE_START": ({"messageId": str}, {"role": str}),
    "TEXT_MESSAGE_CONTENT": ({"messageId": str, "delta": str}, {}),
    "TEXT_MESSAGE_END": ({"messageId": str}, {}),
    "TOOL_CALL_START": ({"toolCallId": str, "toolCallName": str}, {"parentMessageId": str}),
    "TOOL_CALL_ARGS": ({"toolCallId": str, "delta": str}, {}),
    "TOOL_CALL_END": ({"toolCallId": str}, {}),
    "TOOL_CALL_RESULT": ({"messageId": str, "toolCallId": str, "content": str}, {"role": str}),
    "STATE_SNAPSHOT": ({"snapshot": dict}, {}),
    "STATE_DELTA": ({"delta": list}, {}),
    "CUSTOM": ({"name": str, "value": object}, {}),
    "STEP_STARTED": ({"stepName": str}, {}),
    "STEP_FINISHED": ({"stepName": str}, {}),
    "REASONING_START": ({"messageId": str}, {}),
    "REASONING_MESSAGE_START": ({"messageId": str, "role": str}, {}),
    "REASONING_MESSAGE_CONTENT": ({"messageId": str, "delta": str}, {}),
    "REASONING_MESSAGE_END": ({"messageId": str}, {}),
    "REASONING_END": ({"messageId": str}, {}),
    "SUBAGENT_STARTED": ({"subagentRunId": str, "name": str}, {"parentSubagentRunId": str}),
    "SUBAGENT_FINISHED": ({"subagentRunId": str}, {"outcome": dict}),
    "SUBAGENT_ERROR": ({"subagentRunId": str, "message": str}, {"code": str}),
}
"""The required and the optional fields of each event that the server sends."""

COMMON = {"type": str, "metadata": dict, "subagentRunId": str}

INTERRUPT = {
    "id": str, "reason": str, "message": str, "toolCallId": str, "responseSchema": dict,
    "expiresAt": str, "metadata": dict, "subagentRunId": str,
}  # fmt: skip

_SPANS = {
    "TEXT_MESSAGE": ("messageId", ("START", "CONTENT", "END")),
    "TOOL_CALL": ("toolCallId", ("START", "ARGS", "END")),
    "REASONING_MESSAGE": ("messageId", ("START", "CONTENT", "END")),
    "REASONING": ("messageId", ("START", "", "END")),
    "STEP": ("stepName", ("STARTED", "", "FINISHED")),
}
"""The spans that are opened and closed: the name of the id, and the ends of the events."""


def parse_stream(lines: Iterable[str]) -> list[Event]:
    """Return the events of a stream, which has to be valid."""
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data")]
    check_stream(events)
    return events


def check_stream(events: Sequence[Event]) -> None:
    """Check the fields of every event, and the order of the events."""
    for event in events:
        check_fields(event)
    first, *between, last = (event["type"] for event in events)
    assert first == "RUN_STARTED"
    assert last in ("RUN_FINISHED", "RUN_ERROR")
    assert not {"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"}.intersection(between)
    opened: set[tuple[str, str | None, str]] = set()
    used: set[str] = set()
    members: set[str] = set()
    for event in events:
        owner = event.get("subagentRunId")
        if event["type"].startswith("SUBAGENT_"):
            if event["type"] == "SUBAGENT_STARTED":
                assert owner not in used, event
                assert event.get("parentSubagentRunId", owner) in {*members, owner}
                used.add(owner or "")
                members.add(owner or "")
            else:
                members.remove(owner or "")
            continue
        assert owner is None or owner in members, event
        span = next((name for name in _SPANS if event["type"].startswith(f"{name}_")), None)
        if event["type"].startswith("REASONING_MESSAGE_"):
            span = "REASONING_MESSAGE"
        if span is None or event["type"] == "TOOL_CALL_RESULT":
            continue
        field, (begin, _, end) = _SPANS[span]
        key = (span, owner, event[field])
        kind = event["type"].removeprefix(f"{span}_")
        assert (key in opened) == (kind != begin), event
        if kind == begin:
            opened.add(key)
        elif kind == end:
            opened.remove(key)
    assert not opened, opened
    assert not members, members


def check_fields(event: Event) -> None:
    required, optional = FIELDS[event["type"]]
    for name, value in event.items():
        expected = {**COMMON, **required, **optional}[name]
        assert isinstance(value, expected), event
        assert value is not None or name == "value", event
    assert required.keys() <= event.keys(), event
    outcome = event.get("outcome", {}) if event["type"] == "RUN_FINISHED" else {}
    if outcome.get("type") == "interrupt":
        assert outcome["interrupts"], event
        for interrupt in outcome["interrupts"]:
            assert {"id", "reason"} <= interrupt.keys()
            for name, value in interrupt.items():
                assert isinstance(value, INTERRUPT[name]), interrupt
    elif outcome:
        assert outcome["type"] in ("success", "cancelled")
        assert all(isinstance(each, str) for each in outcome.get("pendingToolCallIds", []))


def types(events: Sequence[Event]) -> list[str]:
    return [event["type"] for event in events]


def find(events: Sequence[Event], type: str) -> list[Event]:
    return [event for event in events if event["type"] == type]


def text_of(events: Sequence[Event], owner: str | None = None) -> str:
    """Return the joined text of the run, or of a member."""
    return "".join(
        event["delta"]
        for event in find(events, "TEXT_MESSAGE_CONTENT")
        if event.get("subagentRunId") == owner
    )
