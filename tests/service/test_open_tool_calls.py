"""Open tool calls in stored messages."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentctl.admin.runs_doctor.find import UnreadableMessages, close_calls, find_open_calls
from agentctl.runtime.models.conversion import to_model_messages
from agentctl.store.repositories.integrity import StoredMessages


def user_message(text: str = "go") -> dict[str, Any]:
    return {"role": "user", "content": text, "created_at": 1}


def assistant_calls(*ids: str) -> dict[str, Any]:
    calls = [{"id": each, "name": f"tool-{each}", "arguments": {}} for each in ids]
    return {"role": "assistant", "content": "", "created_at": 1, "tool_calls": calls}


def tool_result(id: str) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": "3",
        "created_at": 1,
        "tool_call_id": id,
        "tool_name": f"tool-{id}",
    }


def text(*messages: dict[str, Any]) -> str:
    return orjson.dumps(messages).decode()


CASES: list[tuple[list[dict[str, Any]], list[str], list[int]]] = [
    ([user_message(), assistant_calls("a"), tool_result("a")], [], []),
    ([user_message(), assistant_calls("a")], ["a"], [2]),
    ([user_message(), assistant_calls("a", "b"), tool_result("a")], ["b"], [3]),
    ([user_message(), assistant_calls("a", "b")], ["a", "b"], [2, 3]),
    (
        [
            user_message(),
            assistant_calls("a"),
            user_message("again"),
            assistant_calls("b"),
            tool_result("b"),
        ],
        ["a"],
        [2],
    ),
    # A model may repeat an id: the second call has a result, the first has none.
    (
        [
            user_message(),
            assistant_calls("a"),
            user_message("again"),
            assistant_calls("a"),
            tool_result("a"),
        ],
        ["a"],
        [2],
    ),
    (
        [
            user_message(),
            assistant_calls("a"),
            tool_result("a"),
            assistant_calls("a"),
            tool_result("a"),
        ],
        [],
        [],
    ),
]


@pytest.mark.parametrize(("messages", "ids", "places"), CASES)
def test_open_calls_get_results_after_their_message(
    messages: list[dict[str, Any]], ids: list[str], places: list[int]
) -> None:
    stored = StoredMessages(text(*messages), None)
    assert [call.id for call in find_open_calls(text(*messages))] == ids
    after = orjson.loads(close_calls(stored, 7).messages or "")
    added = [entry for entry in after if entry.get("content") == "cancelled"]
    assert [after.index(entry) for entry in added] == places
    assert [entry["tool_call_id"] for entry in added] == ids
    assert [entry for entry in after if entry not in added] == messages
    assert find_open_calls(orjson.dumps(after).decode()) == []
    assert to_model_messages(after)


def test_tool_list_marks_closed_calls() -> None:
    tools = [
        {"tool_call_id": "a", "tool_call_error": None, "result": None},
        {"tool_call_id": "b", "tool_call_error": False, "result": "3"},
    ]
    stored = StoredMessages(
        text(user_message(), assistant_calls("a", "b"), tool_result("b")),
        orjson.dumps(tools).decode(),
    )
    after = orjson.loads(close_calls(stored, 7).tools or "")
    assert after[0] == {"tool_call_id": "a", "tool_call_error": True, "result": "cancelled"}
    assert after[1] == tools[1]


@pytest.mark.parametrize(
    "messages", ["", "{}", "[1]", '[{"tool_calls": 1}]', '[{"tool_calls": [{}]}]', "[" * 5_000]
)
def test_invalid_messages_are_rejected(messages: str) -> None:
    with pytest.raises(UnreadableMessages):
        find_open_calls(messages)
