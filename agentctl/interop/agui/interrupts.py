"""Approvals as the interrupts of AG-UI."""

from __future__ import annotations

from typing import Any

from agentctl.interop.pages.decisions import Asked, build_call_id, build_question
from agentctl.records.approvals import MAXIMUM_NOTE_LENGTH, VERBS

_NOTE = {"type": "string", "maxLength": MAXIMUM_NOTE_LENGTH}


def build_interrupt(asked: Asked) -> dict[str, Any]:
    """Return the interrupt of an approval."""
    reason, schema = _describe_answer(asked)
    interrupt = {
        "id": asked["approval_id"],
        "reason": reason,
        "message": build_question(asked),
        "responseSchema": schema,
        "metadata": {
            "agentctl": {
                name: asked[name]
                for name in ("kind", "policy", "run_id", "tool_name", "arguments", "arguments_hash")
            }
        },
    }
    if asked["kind"] != "input":
        interrupt["toolCallId"] = build_call_id(asked["run_id"], asked["tool_call_id"])
    if asked["expires_at"] is not None:
        interrupt["expiresAt"] = asked["expires_at"]
    return interrupt


def _describe_answer(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Return the reason of an interrupt, and the schema of the payload that answers it."""
    match asked["kind"]:
        case "input":
            return "input_required", asked["schema"] or {}
        case "outcome":
            outcomes = {"type": "string", "enum": [*VERBS["outcome"]]}
            properties: dict[str, Any] = {"outcome": outcomes, "result": {}, "note": _NOTE}
            required = ["outcome"]
            reason = "agentctl:outcome"
        case _:
            edited = {**(asked["schema"] or {"type": "object"})}
            properties = {"approved": {"type": "boolean"}, "editedArgs": edited, "note": _NOTE}
            required = ["approved"]
            reason = "tool_call"
    properties["argumentsHash"] = {"type": "string"}
    return reason, {"type": "object", "properties": properties, "required": required}
