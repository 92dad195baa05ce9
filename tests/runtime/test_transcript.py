"""Transcripts of runs, with partial data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.transcript.history import build_chat_history
from agentctl.runtime.transcript.transcript import Transcript


def spent(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(TOKEN_COUNTERS, 0), **counts}


def test_open_answer_is_part_of_the_messages() -> None:
    transcript = Transcript()
    transcript.add_user("hi")
    transcript.begin_answer()
    assert len(transcript.messages) == 1

    transcript.extend_answer("hal")
    transcript.set_usage({"input_tokens": 2, "total_tokens": 2})
    transcript.extend_answer("lo")

    assert transcript.messages[-1]["content"] == "hallo"
    assert transcript.metrics == spent(input_tokens=2, total_tokens=2)
    transcript.end_answer([])
    assert transcript.messages[-1]["content"] == "hallo"
    assert transcript.metrics == spent(input_tokens=2, total_tokens=2)


def test_usage_is_replaced_in_a_call_and_summed_over_calls() -> None:
    transcript = Transcript()
    for _ in range(2):
        transcript.begin_answer()
        transcript.set_usage({"output_tokens": 1})
        transcript.set_usage({"output_tokens": 3})
        transcript.extend_answer("x")
        transcript.end_answer([])

    assert transcript.metrics == spent(output_tokens=6)
    assert [m["metrics"]["output_tokens"] for m in transcript.messages] == [3, 3]


def test_usage_of_an_empty_answer_counts() -> None:
    transcript = Transcript()
    transcript.begin_answer()
    transcript.set_usage({"input_tokens": 4})
    transcript.end_answer([])

    assert transcript.messages == []
    assert transcript.metrics == spent(input_tokens=4)


def test_open_calls_are_closed_once() -> None:
    transcript = Transcript()
    transcript.begin_answer()
    calls: list[dict[str, object]] = [
        {"id": name, "name": "t", "arguments": {}} for name in ("a", "b", "c")
    ]
    transcript.end_answer(calls)
    transcript.open_call("a", "t", {})
    transcript.open_call("b", "t", {})
    assert transcript.close_call("a", "done", error=False) is not None

    transcript.close_open_calls(7_000_000)
    transcript.close_open_calls(8_000_000)

    assert [call["result"] for call in transcript.tools] == ["done", "cancelled"]
    closed = transcript.messages[1:]
    assert [message["tool_call_id"] for message in closed] == ["a", "b", "c"]
    assert [message["content"] for message in closed] == ["done", "cancelled", "cancelled"]
    assert closed[-1]["created_at"] == 7
    assert transcript.close_call("b", "late", error=False) is None


def test_repeated_call_ids_are_distinguished() -> None:
    transcript = Transcript()
    for result in ("one", "two"):
        transcript.begin_answer()
        transcript.end_answer([{"id": "call_0", "name": "t", "arguments": {}}])
        transcript.open_call("call_0", "t", {})
        transcript.close_call("call_0", result, error=False)

    assert [call["result"] for call in transcript.tools] == ["one", "two"]
    tools = [m["content"] for m in transcript.messages if m["role"] == "tool"]
    assert tools == ["one", "two"]


def test_work_of_calls_grows_with_their_number_only() -> None:
    """docs/internals/security-cases.md M12: some 30,000 calls took minutes."""
    close_calls(1)
    few = count_instructions(lambda: close_calls(4))
    many = count_instructions(lambda: close_calls(16))
    assert many < 4.2 * few


def count_instructions(work: Callable[[], object]) -> int:
    """Return the number of instructions of Python that some work takes, on any machine the same."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    # A measurement of the coverage traces as well, and continues afterwards.
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def close_calls(turns: int) -> None:
    """Open and close 128 calls in each turn."""
    transcript = Transcript()
    for turn in range(turns):
        ids = [f"{turn}-{number}" for number in range(128)]
        transcript.begin_answer()
        transcript.end_answer([{"id": name, "name": "t", "arguments": {}} for name in ids])
        for name in ids:
            transcript.open_call(name, "t", {})
        for name in ids:
            transcript.close_call(name, name, error=False)

    assert all(call["result"] == call["tool_call_id"] for call in transcript.tools)
    tools = [item for item in transcript.messages if item["role"] == "tool"]
    assert [item["content"] for item in tools] == [call["result"] for call in transcript.tools]


def test_chat_history_has_instructions_once_and_no_tool_messages() -> None:
    messages = [
        {"role": "system", "content": "Be plain.", "created_at": 1},
        {"role": "user", "content": "hi", "created_at": 2},
        {
            "role": "assistant",
            "content": "",
            "created_at": 3,
            "metrics": {"input_tokens": 1},
            "tool_calls": [{"id": "a", "name": "t", "arguments": {}}],
        },
        {"role": "tool", "content": "x", "created_at": 4, "tool_call_id": "a", "tool_name": "t"},
        {"role": "assistant", "content": "ho", "created_at": 5, "metrics": {"input_tokens": 2}},
    ]
    common = {"from_history": False, "stop_after_tool_call": False}
    user = {"content": "hi", "role": "user", **common, "created_at": 2}
    answer = {
        "content": "ho",
        "role": "assistant",
        **common,
        "created_at": 5,
        "metrics": {"input_tokens": 2},
    }
    system = {"content": "Be plain.", "role": "system", **common, "created_at": 1}

    assert build_chat_history(messages, None) == [system, user, answer]
    assert build_chat_history(messages, "Be vain.") == [system, user, answer]
    assert build_chat_history(messages, "Be plain.") == [user, answer]


def test_checkpoint_of_an_earlier_release_goes_on_with_any_kind() -> None:
    stored = Transcript().to_json()
    del stored["runner_kind"]
    transcript = Transcript.from_json(stored)
    transcript.keep_runner_kind("langgraph")
    later = Transcript.from_json(transcript.to_json())
    later.keep_runner_kind("langgraph")
    with pytest.raises(ExecutionError) as failure:
        later.keep_runner_kind("function")
    assert failure.value.code == "VERSION_CHANGED"
