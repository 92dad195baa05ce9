"""Tool calls of a run that has ended which never got a result: found, and closed.

Providers refuse a history with an open call. What a stopped run leaves is closed when it ends;
this is for rows that were written by hand, or by what did not know of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from agentctl.runtime.transcript import CANCELLED_RESULT
from agentctl.store.repositories.integrity import Messages

__all__ = ["Call", "Unreadable", "closed", "open_calls"]


class Unreadable(Exception):
    """These are no messages as they are stored."""


class Call(NamedTuple):
    """A call without a result: where the results of its message end, its id and its tool."""

    at: int
    id: str
    name: str


def open_calls(messages: str) -> list[Call]:
    """The calls in a JSON array of messages that no later message answers, in order.

    Raises:
        Unreadable: these are no messages as they are stored.
    """
    return _open(_parsed(messages))


def closed(stored: Messages, now: int) -> Messages:
    """The same with a result for every open call: "cancelled", as of a run that was stopped.

    Args:
        now: seconds since the epoch.

    Raises:
        Unreadable: these are no messages as they are stored.
    """
    entries = _parsed(stored.messages or "[]")
    open_now = _open(entries)
    for call in reversed(open_now):
        entries.insert(call.at, _result(call, now))
    ids = {call.id for call in open_now}
    return Messages(orjson.dumps(entries).decode(), _tools_closed(stored.tools, ids))


def _open(entries: list[dict[str, Any]]) -> list[Call]:
    found: dict[str, Call] = {}
    never_answered: list[Call] = []
    for index, entry in enumerate(entries):
        if entry.get("role") == "tool":
            found.pop(str(entry.get("tool_call_id")), None)
        at = _end_of_results(entries, index)
        for call in entry.get("tool_calls") or ():
            asked = Call(at, str(call["id"]), str(call.get("name")))
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


def _result(call: Call, now: int) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": CANCELLED_RESULT,
        "created_at": now,
        "tool_call_id": call.id,
        "tool_name": call.name,
    }


def _tools_closed(tools: str | None, ids: set[str]) -> str | None:
    """The run's list of calls, those that were open marked as cancelled."""
    if tools is None:
        return None
    entries = _parsed(tools)
    for entry in entries:
        if entry.get("tool_call_id") in ids and entry.get("tool_call_error") is None:
            entry.update(tool_call_error=True, result=CANCELLED_RESULT)
    return orjson.dumps(entries).decode()


def _parsed(text: str) -> list[dict[str, Any]]:
    try:
        entries = orjson.loads(text)
    except ValueError:
        raise Unreadable from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Unreadable
    for entry in entries:
        calls = entry.get("tool_calls") or []
        if not isinstance(calls, list) or not all(
            isinstance(call, dict) and "id" in call for call in calls
        ):
            raise Unreadable
    return entries
