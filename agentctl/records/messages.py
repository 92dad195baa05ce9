"""The stored messages of a run."""

from __future__ import annotations

from typing import Any

from agentctl.records.document import parse_stored
from agentctl.records.files import is_reference


def parse_messages(messages_json: str) -> list[dict[str, Any]] | None:
    """Return the stored messages of a run; None if they are damaged."""
    messages = parse_stored(messages_json, list)
    if messages is None:
        return None

    return messages if all(map(_is_message, messages)) else None


def _is_message(value: Any) -> bool:
    # The values come from JSON: they have exact types.
    if type(value) is not dict:
        return False

    get = value.get
    role = get("role")
    calls = get("tool_calls")

    if type(role) is not str or type(get("content")) is not str:
        return False

    # Messages of an import may have no time, and their results no name.
    if type(get("created_at", 0)) not in (int, float):
        return False

    files = get("files", [])
    if type(files) is not list or not all(map(is_reference, files)):
        return False

    if role == "tool":
        return type(get("tool_call_id")) is type(get("tool_name", "")) is str

    return not calls or (type(calls) is list and all(map(_is_call, calls)))


def _is_call(value: Any) -> bool:
    is_named = type(value) is dict and type(value.get("id")) is type(value.get("name")) is str
    return is_named and "arguments" in value
