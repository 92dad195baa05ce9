"""Open tool calls of a run with a final status: calls without a result, and their repair.

Model providers reject a history with an open call. A run that stops closes its calls; this module
repairs rows that another program wrote.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from agentctl.runtime.transcript.history import CANCELLED_RESULT
from agentctl.store.repositories.integrity import StoredMessages


class UnreadableMessages(Exception):
    """The text is not a JSON array of messages."""


class OpenCall(NamedTuple):
    """A call without a result: the index after the results of its message, its id and tool."""

    at: int
    id: str
    name: str


def find_open_calls(messages: str) -> list[OpenCall]:
    """Return the calls in a JSON array of messages without a result in a later message.

    Raises:
        UnreadableMessages: the text is not a JSON array of messages.
    """
    return _find_open(_parse(messages))


def close_calls(stored: StoredMessages, now: int) -> StoredMessages:
    """Return the messages with the result "cancelled" for every open call.

    Args:
        now: seconds since the epoch.
    """
    entries = _parse(stored.messages or "[]")
    open_now = _find_open(entries)
    for call in reversed(open_now):
        entry = {
            "role": "tool",
            "content": CANCELLED_RESULT,
            "created_at": now,
            "tool_call_id": call.id,
            "tool_name": call.name,
        }
        entries.insert(call.at, entry)
    messages, ids = orjson.dumps(entries).decode(), {call.id for call in open_now}
    if stored.tools is None:
        return StoredMessages(messages, None)
    tools = _parse(stored.tools)
    for entry in tools:
        if entry.get("tool_call_id") in ids and entry.get("tool_call_error") is None:
            entry.update(tool_call_error=True, result=CANCELLED_RESULT)
    return StoredMessages(messages, orjson.dumps(tools).decode())


def _find_open(entries: list[dict[str, Any]]) -> list[OpenCall]:
    pending: dict[str, OpenCall] = {}
    never_answered: list[OpenCall] = []
    for index, entry in enumerate(entries):
        if entry.get("role") == "tool":
            pending.pop(str(entry.get("tool_call_id")), None)
        at = index + 1
        while at < len(entries) and entries[at].get("role") == "tool":
            at += 1
        for call in entry.get("tool_calls") or ():
            opened = OpenCall(at, str(call["id"]), str(call.get("name")))
            # The model creates the ids; a repeated id is a new call.
            earlier = pending.get(opened.id)
            if earlier is not None and earlier.at != at:
                never_answered.append(earlier)
            pending[opened.id] = opened
    return sorted([*never_answered, *pending.values()], key=lambda call: call.at)


def _parse(text: str) -> list[dict[str, Any]]:
    try:
        entries = orjson.loads(text)
    except ValueError:
        raise UnreadableMessages from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UnreadableMessages
    for entry in entries:
        calls = entry.get("tool_calls") or []
        if not isinstance(calls, list) or not all(
            isinstance(call, dict) and "id" in call for call in calls
        ):
            raise UnreadableMessages
    return entries
