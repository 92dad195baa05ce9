"""Tool calls of a run that has ended which never got a result: found, and closed.

Providers refuse a history with an open call. What a stopped run leaves is closed when it ends;
this is for rows that were written by hand, or by what did not know of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from agentctl.runtime.transcript import CANCELLED_RESULT
from agentctl.store.repositories.integrity import StoredMessages

__all__ = ["OpenCall", "UnreadableMessages", "close_calls", "find_open_calls"]


class UnreadableMessages(Exception):
    """These are no messages as they are stored."""


class OpenCall(NamedTuple):
    """A call without a result: where the results of its message end, its id and its tool."""

    at: int
    id: str
    name: str


def find_open_calls(messages: str) -> list[OpenCall]:
    """The calls in a JSON array of messages that no later message answers, in order.

    Raises:
        Unreadable: these are no messages as they are stored.
    """
    return _find_open(_parse(messages))


def close_calls(stored: StoredMessages, now: int) -> StoredMessages:
    """The same with a result for every open call: "cancelled", as of a run that was stopped.

    Args:
        now: seconds since the epoch.

    Raises:
        Unreadable: these are no messages as they are stored.
    """
    entries = _parse(stored.messages or "[]")
    open_now = _find_open(entries)
    for call in reversed(open_now):
        entries.insert(call.at, _build_result(call, now))
    ids = {call.id for call in open_now}
    return StoredMessages(orjson.dumps(entries).decode(), _close_tools(stored.tools, ids))


def _find_open(entries: list[dict[str, Any]]) -> list[OpenCall]:
    found: dict[str, OpenCall] = {}
    never_answered: list[OpenCall] = []
    for index, entry in enumerate(entries):
        if entry.get("role") == "tool":
            found.pop(str(entry.get("tool_call_id")), None)
        at = _end_of_results(entries, index)
        for call in entry.get("tool_calls") or ():
            asked = OpenCall(at, str(call["id"]), str(call.get("name")))
            # Ids are the model's; one that it uses again is another call.
            earlier = found.get(asked.id)
            if earlier is not None and earlier.at != at:
                never_answered.append(earlier)
            found[asked.id] = asked
    return sorted([*never_answered, *found.values()], key=lambda call: call.at)


def _end_of_results(entries: list[dict[str, Any]], asked: int) -> int:
    """Behind the results that follow the message which asked: there is where more belong."""
    at = asked + 1
    while at < len(entries) and entries[at].get("role") == "tool":
        at += 1
    return at


def _build_result(call: OpenCall, now: int) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": CANCELLED_RESULT,
        "created_at": now,
        "tool_call_id": call.id,
        "tool_name": call.name,
    }


def _close_tools(tools: str | None, ids: set[str]) -> str | None:
    """The run's list of calls, those that were open marked as cancelled."""
    if tools is None:
        return None
    entries = _parse(tools)
    for entry in entries:
        if entry.get("tool_call_id") in ids and entry.get("tool_call_error") is None:
            entry.update(tool_call_error=True, result=CANCELLED_RESULT)
    return orjson.dumps(entries).decode()


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
