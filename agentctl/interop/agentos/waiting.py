"""The calls of paused runs of AgentOS as approvals, and decisions about them.

AgentOS keeps a record of an approval only for tools that need another person. All other calls are
decided by the client that continues the run: it sends them back with the decisions in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentctl.errors import NotFound
from agentctl.interface.requests.approvals import Ruling
from agentctl.interop.agentos.values import (
    Built,
    format_moment,
    read_object,
    read_objects,
    read_required,
    read_text,
)
from agentctl.records.approvals import ApprovalKind, ApprovalRecord, hash_call
from agentctl.records.kinds import KINDS, ComponentKind, Record

FIELDS: dict[ComponentKind, str] = {
    "agent": "tools",
    "team": "requirements",
    "workflow": "step_requirements",
}
"""The member of a paused run with its calls, and the field of the form that continues it."""

PAUSE_TYPES: dict[ApprovalKind, str] = {
    "approval": "confirmation",
    "input": "user_input",
    "external": "external_execution",
}
"""The names of the kinds of approval. AgentOS has none for `outcome`."""

FLAGS: dict[ApprovalKind, str] = {
    "approval": "requires_confirmation",
    "external": "external_execution_required",
    "input": "requires_user_input",
}
"""The members of a call that are true for a kind of approval."""

_SETTLED = {"approval": "confirmed", "external": "result", "input": "answered"}
"""The members of a call that have a value after a decision."""

FIELD_TYPES = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list",
    "object": "dict",
}  # fmt: skip
"""The names of the types of JSON Schema."""

_JSON_TYPES = {name: kind for kind, name in FIELD_TYPES.items()}


Waiting = tuple[Built, Built]
"""The approval of a call, or of a step of a workflow, that waits, with the fields of
`ApprovalRecord`; and the object of AgentOS that a decision is set on."""


def find_waiting(run: Record) -> list[Waiting]:
    """Return what a paused run, or the event of its pause, waits for."""
    steps = read_objects(run.get("step_requirements"))
    requirements = read_objects(run.get("requirements"))
    if steps:
        found = [call for step in steps for call in _find_in_step(run, step)]
    elif requirements:
        found = [call for each in requirements for call in _find_in_requirement(run, each)]
    else:
        found = [call for each in read_objects(run.get("tools")) for call in _find_call(run, each)]
    return found


def find_returned(run: Record, kind: ComponentKind) -> list[Built]:
    """Return the objects that a client sends back to continue a run."""
    given = read_objects(run.get(FIELDS[kind]))
    if kind == "team" and not given:
        return [{"tool_execution": tool} for tool in read_objects(run.get("tools"))]
    return given


def apply_decisions(run: Record, decisions: Iterable[Ruling]) -> None:
    """Set decisions on the calls of a paused run; NotFound if it does not wait for such a call."""
    by_id = {call[0]["approval_id"]: call for call in find_waiting(run)}
    # An agent's run has its calls twice, and the client returns those in `tools`.
    tools = {tool.get("tool_call_id"): tool for tool in read_objects(run.get("tools"))}
    for decision in decisions:
        call = by_id.get(decision.approval_id or "")
        if call is None:
            raise NotFound("Approval not found")
        approval, waiting = call
        for given in (waiting, tools.get(approval["tool_call_id"])):
            if given is not None:
                _apply(given, decision)


def _apply(given: Built, decision: Ruling) -> None:
    match decision.decision:
        case "approve":
            given["confirmed"] = True
            if decision.arguments is not None:
                given["tool_args"] = decision.arguments
        case "reject":
            given |= {"confirmed": False, "confirmation_note": decision.note}
            given["rejection_feedback"] = decision.note
        case "answer":
            values = decision.answer if isinstance(decision.answer, dict) else {}
            for field in read_objects(given.get("user_input_schema")):
                field["value"] = values.get(field.get("name"), field.get("value"))
            given |= {"answered": True, "user_input": values}
        case "complete":
            given["result"] = decision.result
        case "fail":
            given |= {"result": decision.note or "The call failed", "tool_call_error": True}


def _find_in_step(run: Record, step: Built) -> Iterator[Waiting]:
    for requirement in read_objects(step.get("executor_requirements")):
        executor = {"member_run_id": step.get("executor_run_id")}
        yield from _find_in_requirement(run, executor | requirement)
    is_asked = step.get("requires_user_input") and not step.get("user_input")
    is_confirmed = step.get("requires_confirmation") or step.get("requires_output_review")
    if is_asked or (is_confirmed and step.get("confirmed") is None):
        message = step.get("user_input_message" if is_asked else "confirmation_message")
        call = {"tool_call_id": step.get("step_id"), "tool_name": step.get("step_name")}
        asked = call | {"user_input_schema": step.get("user_input_schema")}
        kind = "input" if is_asked else "approval"
        yield _build(run, asked, kind, {}) | {"question": read_text(message)}, step


def _find_in_requirement(run: Record, requirement: Built) -> Iterator[Waiting]:
    tool = read_object(requirement.get("tool_execution"))
    if tool is not None:
        yield from _find_call(run, tool, requirement)


def _find_call(run: Record, tool: Built, requirement: Record | None = None) -> Iterator[Waiting]:
    for kind, flag in FLAGS.items():
        given = tool.get(_SETTLED[kind])
        if tool.get(flag) and (given is None or (kind == "input" and not given)):
            yield _build(run, tool, kind, requirement or {}), tool
            return


def _build(run: Record, tool: Record, kind: str, requirement: Record) -> Built:
    root = read_required(run.get("run_id"))
    run_id = read_text(requirement.get("member_run_id")) or root
    call_id = read_required(tool.get("tool_call_id"))
    name = read_required(tool.get("tool_name"))
    arguments = read_object(tool.get("tool_args")) or {}
    member = read_text(requirement.get("member_agent_id"))
    component_id = ""
    component_type: ComponentKind = "agent"
    for names in KINDS.values():
        if member is None and run.get(names.id_field):
            component_type = names.kind
            component_id = str(run[names.id_field])
            break
    return dict.fromkeys(ApprovalRecord.__annotations__) | {
        # Without a record of AgentOS the id of the call names it.
        "approval_id": read_text(tool.get("approval_id")) or call_id,
        "kind": kind,
        "status": "pending",
        "policy": "other" if tool.get("approval_type") == "required" else "user",
        "run_id": run_id,
        "root_run_id": root,
        "session_id": read_required(run.get("session_id")),
        "component_type": component_type,
        "component_id": member or component_id,
        "user_id": read_text(run.get("user_id")),
        "tool_call_id": call_id,
        "tool_name": name,
        "arguments": arguments,
        "arguments_hash": hash_call(run_id, call_id, name, arguments),
        "schema": _build_schema(tool) if kind == "input" else None,
        "created_at": format_moment(tool.get("created_at") or run.get("created_at")),
    }


def _build_schema(tool: Record) -> Built:
    """Return the JSON Schema of an answer: an object with the fields that have no value."""
    fields = read_objects(tool.get("user_input_schema"))
    properties: dict[str, Any] = {}
    for field in fields:
        kind = _JSON_TYPES.get(str(field.get("field_type")))
        described = {"description": field["description"]} if field.get("description") else {}
        properties[str(field.get("name"))] = ({"type": kind} if kind else {}) | described
    required = [str(field.get("name")) for field in fields if field.get("value") is None]
    return {"type": "object", "properties": properties, "required": required}
