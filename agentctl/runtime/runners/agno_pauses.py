"""Pauses of agents of agno as approvals, and the tools with which a paused run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from agno.tools import Function, Toolkit

from agentctl.runtime.json_values import to_json_value
from agentctl.runtime.pauses import Decision, Leg, NewApproval

_ASK_USER = "ask_user"

_JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


def list_asks(output: Any, target: Any) -> list[NewApproval]:
    """Return what a paused run asks for.

    Args:
        output: the `RunOutput` of the pause.
        target: the agent, whose tools have the schemas of their arguments.
    """
    return [_build_ask(tool, target) for tool in output.tools or () if is_waiting(tool)]


def is_waiting(tool: Any) -> bool:
    """Return True if a call waits for a decision, an answer or a result."""
    return bool(
        (tool.requires_confirmation and tool.confirmed is None)
        or (tool.external_execution_required and tool.result is None)
        or (tool.requires_user_input and not tool.answered)
    )


def _build_ask(tool: Any, target: Any) -> NewApproval:
    call_id, name = tool.tool_call_id or "", tool.tool_name or ""
    arguments = to_json_value(tool.tool_args or {}, 2**31)
    policy: Any = "other" if tool.approval_type == "required" else "user"
    if tool.requires_confirmation:
        schema = _find_schema(target, name)
        return NewApproval("approval", call_id, name, arguments, policy=policy, schema=schema)
    if tool.external_execution_required:
        return NewApproval("external", call_id, name, arguments, policy=policy)
    questions = tool.user_feedback_schema or ()
    schema = _build_choices(questions) if questions else _build_fields(tool.user_input_schema or ())
    texts = [question.question for question in questions]
    return NewApproval("input", call_id, name, arguments, policy, "\n".join(texts) or None, schema)


def _build_fields(fields: Any) -> dict[str, Any]:
    """Return the schema of an answer: an object with a value for each field."""
    properties = {}
    for each in fields:
        kind = _JSON_TYPES.get(each.field_type)
        described = {"description": each.description} if each.description else {}
        properties[each.name] = ({"type": kind} if kind else {}) | described
    required = [each.name for each in fields if each.value is None]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _build_choices(questions: Any) -> dict[str, Any]:
    """Return the schema of an answer: an object with a list of labels for each question."""
    properties = {}
    for each in questions:
        items: dict[str, Any] = {"type": "string"}
        if each.options:
            items = {"enum": [option.label for option in each.options]}
        limit = {} if each.multi_select else {"maxItems": 1}
        properties[each.question] = {"type": "array", "items": items, **limit}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _find_schema(target: Any, name: str) -> dict[str, Any] | None:
    for function in _list_functions(target):
        if function.name == name:
            function = function.model_copy(deep=True)
            try:
                function.process_entrypoint()
            except Exception:
                # The agent calls it as its model asks, too.
                return None
            return dict(function.parameters) if function.parameters else None
    return None


def _list_functions(target: Any) -> Iterator[Any]:
    for tool in target.tools if isinstance(target.tools, list) else ():
        if isinstance(tool, Toolkit):
            yield from {**tool.functions, **tool.async_functions}.values()
        elif isinstance(tool, Function):
            yield tool


@dataclass(slots=True)
class DecidedCalls:
    """The decided calls of a pause.

    Attributes:
        approved: the calls that are to be made, by their ids.
        ended: the text of the calls that are not to be made, and whether they failed.
    """

    approved: dict[str, Decision] = field(default_factory=dict)
    ended: dict[str, tuple[str, bool]] = field(default_factory=dict)


def apply_decisions(output: Any, leg: Leg) -> DecidedCalls:
    """Set the decisions on the calls of a stored `RunOutput`, with the arguments that we stored.

    They are set on its `tools`: its requirements have other objects, which the library does not
    read. A call with a result is never made again: it becomes one that was executed elsewhere.
    """
    calls = DecidedCalls()
    for tool in output.tools or ():
        decision = leg.find(tool.tool_call_id or "") if is_waiting(tool) else None
        if decision is None:
            continue
        call_id = decision.tool_call_id
        if decision.kind == "approval" and decision.is_approved and decision.execution is None:
            tool.confirmed, tool.tool_args = True, dict(decision.arguments)
            calls.approved[call_id] = decision
        elif decision.execution is not None:
            failed = decision.execution != "done"
            calls.ended[call_id] = _set_result(tool, _to_text(decision.result), failed=failed)
        elif decision.status != "answered":
            calls.ended[call_id] = _set_result(tool, decision.refusal, failed=True)
        elif tool.tool_name == _ASK_USER:
            for question in tool.user_feedback_schema or ():
                question.selected_options = list(_read(decision.answer, question.question) or ())
        else:
            for each in tool.user_input_schema or ():
                value = _read(decision.answer, each.name)
                each.value = each.value if value is None else value
    return calls


def _set_result(tool: Any, text: str, *, failed: bool) -> tuple[str, bool]:
    tool.requires_confirmation = tool.requires_user_input = None
    tool.external_execution_required = True
    tool.result, tool.tool_call_error = text, failed
    return text, failed


def _read(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else None


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
