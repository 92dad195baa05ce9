"""Histories that models accept, from the neutral messages of earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentctl.runtime.transcript import CANCELLED_RESULT


def complete_history(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of earlier runs without system messages and with a result of every call.

    The current run has its own instructions. Providers reject a history with an open call, so a
    call without a result gets one before the next message.
    """
    open_calls: dict[str, str] = {}
    created_at = 0
    for message in messages:
        role = message["role"]
        if role == "tool":
            if open_calls.pop(message["tool_call_id"], None) is not None:
                yield message
            continue
        yield from _cancelled_results(open_calls, created_at)
        open_calls, created_at = {}, message["created_at"]
        if role in ("user", "assistant"):
            yield message
            open_calls = {call["id"]: call["name"] for call in message.get("tool_calls", ())}
    yield from _cancelled_results(open_calls, created_at)


def _cancelled_results(
    open_calls: Mapping[str, str], created_at: int
) -> Iterator[Mapping[str, Any]]:
    for call_id, name in open_calls.items():
        yield {
            "role": "tool",
            "content": CANCELLED_RESULT,
            "created_at": created_at,
            "tool_call_id": call_id,
            "tool_name": name,
        }
