"""Tool calls without a result, in messages as they are stored."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentctl.runtime.conversion import to_model_messages
from agentctl.service.runs_doctor.tool_calls import UnreadableMessages, close_calls, find_open_calls
from agentctl.store.repositories.integrity import StoredMessages


def user(text: str = "go") -> dict[str, Any]:
    return {"role": "user", "content": text, "created_at": 1}


def asks(*ids: str) -> dict[str, Any]:
    calls = [{"id": each, "name": f"tool-{each}", "arguments": {}} for each in ids]
    return {"role": "assistant", "content": "", "created_at": 1, "tool_calls": calls}


def result(id: str) -> dict[str, Any]:
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
    ([user(), asks("a"), result("a")], [], []),
    ([user(), asks("a")], ["a"], [2]),
    ([user(), asks("a", "b"), result("a")], ["b"], [3]),
    ([user(), asks("a", "b")], ["a", "b"], [2, 3]),
    ([user(), asks("a"), user("again"), asks("b"), result("b")], ["a"], [2]),
    # A model may use an id again: the second call is answered, the first is not.
    ([user(), asks("a"), user("again"), asks("a"), result("a")], ["a"], [2]),
    ([user(), asks("a"), result("a"), asks("a"), result("a")], [], []),
]


@pytest.mark.parametrize(("messages", "ids", "places"), CASES)
def test_calls_without_a_result_get_one_where_it_belongs(
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


def test_the_list_of_tools_says_so_too() -> None:
    tools = [
        {"tool_call_id": "a", "tool_call_error": None, "result": None},
        {"tool_call_id": "b", "tool_call_error": False, "result": "3"},
    ]
    stored = StoredMessages(text(user(), asks("a", "b"), result("b")), orjson.dumps(tools).decode())
    after = orjson.loads(close_calls(stored, 7).tools or "")
    assert after[0] == {"tool_call_id": "a", "tool_call_error": True, "result": "cancelled"}
    assert after[1] == tools[1]


@pytest.mark.parametrize(
    "messages", ["", "{}", "[1]", '[{"tool_calls": 1}]', '[{"tool_calls": [{}]}]', "[" * 5_000]
)
def test_what_is_no_talk_is_refused(messages: str) -> None:
    with pytest.raises(UnreadableMessages):
        find_open_calls(messages)
