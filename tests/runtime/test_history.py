"""Messages of earlier runs as providers accept them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.records.messages import parse_messages
from agentctl.runtime.transcript.history import complete_history, is_acceptable

USER: dict[str, Any] = {"role": "user", "content": "hello", "created_at": 1}


def build_answer(content: str = "", **calls: str) -> dict[str, Any]:
    made = [{"id": key, "name": name, "arguments": {}} for key, name in calls.items()]
    return {"role": "assistant", "content": content, "created_at": 1, "tool_calls": made}


def build_result(call_id: str, name: str) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": "done",
        "created_at": 1,
        "tool_call_id": call_id,
        "tool_name": name,
    }


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_answer_is_left_out(text: str) -> None:
    messages = [USER, build_answer(text), USER]
    assert not is_acceptable(messages)
    assert [*complete_history(messages)] == [USER, USER]


@pytest.mark.parametrize(
    ("name", "sent"),
    [("functions.add", "functions_add"), ("", "_"), ("añadir 2", "a_adir_2"), ("x" * 80, "x" * 64)],
)
def test_invented_name_gets_the_letters_of_a_function(name: str, sent: str) -> None:
    messages = [USER, build_answer(one=name), build_result("one", name)]
    assert not is_acceptable(messages)
    _, answer, result = complete_history(messages)
    assert (answer["tool_calls"][0]["name"], result["tool_name"]) == (sent, sent)


def test_call_without_an_id_keeps_its_result() -> None:
    messages = [USER, build_answer(**{"": "add"}), build_result("", "add")]
    assert not is_acceptable(messages)
    _, answer, result = complete_history(messages)
    assert answer["tool_calls"][0]["id"] == result["tool_call_id"] != ""


def test_calls_after_the_128th_are_left_out() -> None:
    calls = {f"call{number}": "add" for number in range(200)}
    results = [build_result(call_id, "add") for call_id in calls]
    messages = [USER, build_answer(**calls), *results]
    assert not is_acceptable(messages)
    _, answer, *kept = complete_history(messages)
    assert (len(answer["tool_calls"]), kept) == (128, results[:128])


def test_acceptable_answers_are_not_changed() -> None:
    answer = build_answer(one="add", two="add")
    messages = [USER, answer, build_result("one", "add"), build_result("two", "add")]
    assert is_acceptable(messages)
    kept = [*complete_history(messages)]
    # Records name messages of the history by their identity, without their text.
    assert all(one is other for one, other in zip(kept, messages, strict=True))


def test_imported_messages_without_a_time_and_a_name_are_history() -> None:
    messages = [USER, build_answer(one="add"), build_result("one", "add")]
    bare = [
        {name: value for name, value in each.items() if name not in ("created_at", "tool_name")}
        for each in messages
    ]
    parsed = parse_messages(json.dumps(bare))
    assert parsed == bare
    assert [each["role"] for each in complete_history(parsed)] == ["user", "assistant", "tool"]


ASKED: dict[str, Any] = {"role": "user", "content": "hi", "created_at": 1}
CALLED = {**ASKED, "role": "assistant", "tool_calls": [{"id": "1", "name": "x", "arguments": {}}]}
RESULT = {**ASKED, "role": "tool", "tool_call_id": "1", "tool_name": "x"}


@pytest.mark.parametrize(
    "stored",
    [
        7,
        {},
        "text",
        [7],
        [[]],
        [{}],
        [{**ASKED, "content": None}],
        [{**ASKED, "role": 1}],
        [{**ASKED, "created_at": "now"}],
        [ASKED, {**CALLED, "tool_calls": 5}],
        [{**CALLED, "tool_calls": [{}]}],
        [{**CALLED, "tool_calls": [{"id": "1", "name": "x"}]}],
        [{**CALLED, "tool_calls": [{"id": 1, "name": "x", "arguments": {}}]}],
        [{**RESULT, "tool_name": None}],
        [{**RESULT, "tool_call_id": 7}],
    ],
)
def test_damaged_messages_are_none(stored: Any) -> None:
    assert parse_messages(json.dumps(stored)) is None


def test_stored_messages_are_read() -> None:
    whole = [ASKED, CALLED, RESULT]
    assert parse_messages(json.dumps(whole)) == whole
    assert parse_messages("[]") == []
    assert parse_messages(json.dumps(whole)[:-1]) is None
