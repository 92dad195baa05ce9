"""Messages in the neutral form that transcripts, the store and histories share.

    {"role": "system" | "user" | "assistant" | "tool", "content": str, "created_at": int seconds,
     "tool_calls"?: [{"id", "name", "arguments": object}], "tool_call_id"?, "tool_name"?,
     "metrics"?: {nine counters}}

Assistant messages have `tool_calls` and `metrics`; tool messages have `tool_call_id` and
`tool_name`. `runtime.conversion` converts them to the form of the model library
(docs/decisions/0005).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["build_chat_history"]


def build_chat_history(
    messages: Iterable[Mapping[str, Any]], previous_system: str | None
) -> list[dict[str, Any]]:
    """Return the `chat_history` entries of a run (docs/contract.md "Session records").

    Args:
        messages: the messages of one run.
        previous_system: instructions of the previous run, None if there was none. Equal
            instructions are not repeated (docs/decisions/0006).
    """
    return [
        _history_entry(message)
        for message in messages
        if (message["role"] == "user")
        or (message["role"] == "assistant" and message["content"])
        or (message["role"] == "system" and message["content"] != previous_system)
    ]


def _history_entry(message: Mapping[str, Any]) -> dict[str, Any]:
    entry = {
        "content": message["content"],
        "role": message["role"],
        "from_history": False,
        "stop_after_tool_call": False,
        "created_at": message["created_at"],
    }
    if message["role"] == "assistant":
        entry["metrics"] = dict(message.get("metrics") or {})
    return entry
