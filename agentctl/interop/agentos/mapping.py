"""The records of this interface in the shapes of AgentOS 2.7.2 and 3.1.

AgentOS is the server of the package `agno`.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from agentctl.interop.agentos.values import Built, to_seconds, write_counters
from agentctl.records.kinds import Record

_NEW_TOOL: Built = dict.fromkeys(
    (
        "tool_call_id", "tool_name", "tool_args", "tool_call_error", "result", "metrics",
        "child_run_id", "stop_after_tool_call", "created_at", "requires_confirmation", "confirmed",
        "confirmation_note", "requires_user_input", "user_input_schema", "user_feedback_schema",
        "answered", "external_execution_required", "external_execution_silent", "approval_type",
        "approval_id",
    )
) | {"stop_after_tool_call": False}  # fmt: skip
"""All members of a tool call of AgentOS."""


def write_messages(run_id: str, messages: Iterable[Record]) -> list[Built]:
    """Return the messages of a run; the id of a message is its run and its position."""
    written = list[Built]()
    for position, message in enumerate(messages):
        message_record = {
            "id": f"{run_id}-{position}",
            "content": message.get("content"),
            "from_history": False,
            "stop_after_tool_call": False,
            "role": message["role"],
            "created_at": message.get("created_at"),
        }

        if message.get("tool_calls"):
            message_record["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {
                        "name": call["name"],
                        "arguments": orjson.dumps(call["arguments"]).decode(),
                    },
                }
                for call in message["tool_calls"]
            ]

        for name in ("tool_call_id", "tool_name"):
            if message.get(name) is not None:
                message_record[name] = message[name]

        if message.get("metrics"):
            message_record["metrics"] = write_counters(message["metrics"])

        written.append(message_record)

    return written


def write_tool(tool: Record, created_at: int) -> Built:
    """Return a tool call with all members."""
    return {**_NEW_TOOL, "created_at": created_at, **tool}


def write_session(session: Record) -> Built:
    """Return the detail record of a session; its history is without system messages."""
    session_record = {**session}

    if session.get("chat_history") is not None:
        messages = [line for line in session["chat_history"] if line["role"] != "system"]
        session_record["chat_history"] = write_messages(session["session_id"], messages)

    if session.get("metrics") is not None:
        session_record["metrics"] = write_counters(session["metrics"])

    return session_record


def write_account(account: Record) -> Built:
    """Return a service account; its user is the account itself."""
    user_id = f"sa:{account['id']}"
    return {
        "id": account["id"],
        "name": account["name"],
        "principal": user_id,
        "user_id": user_id,
        "token_prefix": account["token_hint"],
        "scopes": [_write_scope(grant["scope"]) for grant in account["scopes"]],
        "created_at": to_seconds(account["created_at"]),
        "expires_at": _write_time(account["expires_at"]),
        "last_used_at": _write_time(account["last_used_at"]),
        "revoked_at": _write_time(account["revoked_at"]),
        "created_by": account["created_by"],
    }


def _write_time(timestamp: str | None) -> int | None:
    return None if timestamp is None else to_seconds(timestamp)


def _write_scope(raw: str) -> Built:
    namespace, *middle, permission = raw.split(":")
    return {
        "id": None,
        "raw": raw,
        "namespace": namespace,
        "sub_namespace": middle[0] if middle else None,
        "permission": permission,
        "value": "allow",
    }
