"""Pauses of agents and teams of agno as approvals, and the calls with which a paused run goes on.

The texts of `get_user_input` and `ask_user` are those that the library gives to the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from agno.run.base import RunStatus
from agno.tools import Function, Toolkit
from agno.utils.team import get_member_id

from agentctl.light_dataclass import dataclass
from agentctl.runtime.json_values import to_json_value
from agentctl.runtime.pauses import Ask, Decided, Leg, to_text

_ASK_USER, _GET_INPUT = "ask_user", "get_user_input"

_JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}

CallId = tuple[str, str]
"""The id of a run of agno, and that of its call."""


class AgnoCall(NamedTuple):
    """A call that waits for a decision, an answer or a result.

    Attributes:
        run_id: the run of agno that makes it: that of the agent, or of a member.
        owner_id: the agent or team of that run.
        key: its id in the run of agentctl, which has the approvals of all members.
    """

    run_id: str
    owner_id: str
    key: str
    tool: Any


def list_waiting(output: Any) -> list[AgnoCall]:
    """Return the calls that wait in a paused run, and in those of its members."""
    found = [
        (run, tool) for run in walk_paused(output) for tool in run.tools or () if is_waiting(tool)
    ]
    counts = Counter(tool.tool_call_id for _, tool in found)
    calls = []
    for run, tool in found:
        owner_id = getattr(run, "team_id", None) or getattr(run, "agent_id", None) or ""
        call_id = tool.tool_call_id or ""
        key = call_id if counts[call_id] == 1 else f"{run.run_id}:{call_id}"
        calls.append(AgnoCall(run.run_id, owner_id, key, tool))
    return calls


def walk_paused(output: Any) -> Iterator[Any]:
    """Yield a run, and the paused runs of its members."""
    yield output
    for member in getattr(output, "member_responses", None) or ():
        if member.status == RunStatus.paused:
            yield from walk_paused(member)


def list_asks(waiting: Iterable[AgnoCall], owners: Iterable[Any]) -> list[Ask]:
    """Return what calls wait for.

    Args:
        owners: the agents and teams; their tools have the schemas of their arguments.
    """
    by_id = {get_member_id(each): each for owner in owners for each in walk_members(owner)}
    return [_build_ask(call, by_id.get(call.owner_id)) for call in waiting]


def walk_members(target: Any) -> Iterator[Any]:
    """Yield an agent or team, and the members of a team, nested ones too."""
    yield target
    members = getattr(target, "members", None)
    for member in members if isinstance(members, list) else ():
        yield from walk_members(member)


def is_waiting(tool: Any) -> bool:
    """Return True if a call waits for a decision, an answer or a result."""
    return bool(
        (tool.requires_confirmation and tool.confirmed is None)
        or (tool.external_execution_required and tool.result is None)
        or (tool.requires_user_input and not tool.answered)
    )


def _build_ask(call: AgnoCall, owner: Any) -> Ask:
    tool, name = call.tool, call.tool.tool_name or ""
    arguments = to_json_value(tool.tool_args or {}, 2**31)
    policy: Any = "other" if tool.approval_type == "required" else "user"
    if tool.requires_confirmation:
        schema = _find_schema(owner, name)
        return Ask("approval", call.key, name, arguments, policy=policy, schema=schema)
    if tool.external_execution_required:
        return Ask("external", call.key, name, arguments, policy=policy)
    questions = tool.user_feedback_schema or ()
    schema = _build_choices(questions) if questions else _build_fields(tool.user_input_schema or ())
    texts = [question.question for question in questions]
    return Ask("input", call.key, name, arguments, policy, "\n".join(texts) or None, schema)


def _build_fields(fields: Any) -> dict[str, Any]:
    """Return the schema of an answer: an object with a value for each field."""
    properties = {}
    for each in fields:
        kind = _JSON_TYPES.get(each.field_type)
        described = {"description": each.description} if each.description else {}
        properties[each.name] = ({"type": kind} if kind else {}) | described
    return build_object(properties, [each.name for each in fields if each.value is None])


def build_object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the schema of an object with these properties, and no others."""
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
    tools = getattr(target, "tools", None)
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, Toolkit):
            yield from {**tool.functions, **tool.async_functions}.values()
        elif isinstance(tool, Function):
            yield tool


@dataclass(slots=True)
class DecidedCalls:
    """The decided calls of a pause.

    Attributes:
        approved: the calls that are to be made.
        ended: the text of the calls that are not to be made, and whether they failed.
    """

    approved: dict[CallId, Decided] = field(default_factory=dict)
    ended: dict[CallId, tuple[str, bool]] = field(default_factory=dict)


def apply_decisions(output: Any, leg: Leg) -> DecidedCalls:
    """Set the decisions on the calls of a stored run, with the arguments that we stored.

    A call with a result is never made again: it becomes one that was executed elsewhere.
    """
    calls = DecidedCalls()
    for call in list_waiting(output):
        decision = leg.find(call.key)
        if decision is None:
            continue
        call_id = call.run_id, call.tool.tool_call_id or ""
        ended = _apply(call.tool, decision)
        if ended is not None:
            calls.ended[call_id] = ended
        elif decision.kind == "approval":
            calls.approved[call_id] = decision
        for requirement in _find_requirements(output, call_id):
            # The library has other objects here, and reads those of members only.
            if _apply(requirement.tool_execution, decision) is not None:
                requirement.external_execution_result = requirement.tool_execution.result
    return calls


def _find_requirements(output: Any, call_id: CallId) -> Iterator[Any]:
    for run in walk_paused(output):
        for requirement in run.requirements or ():
            run_id = requirement.member_run_id or run.run_id
            if (run_id, requirement.tool_execution.tool_call_id) == call_id:
                yield requirement


def _apply(tool: Any, decision: Decided) -> tuple[str, bool] | None:
    """Set a decision on a call; return its text and whether it failed if it is not to be made."""
    if decision.kind == "approval" and decision.is_approved and decision.execution is None:
        tool.confirmed, tool.tool_args = True, dict(decision.arguments)
        return None
    if decision.execution is not None:
        failed = decision.execution != "done"
        return _set_result(tool, to_text(decision.result), failed=failed)
    if decision.status != "answered":
        return _set_result(tool, decision.refusal, failed=True)
    tool.answered = True
    if tool.tool_name == _ASK_USER:
        for question in tool.user_feedback_schema or ():
            question.selected_options = list(_read(decision.answer, question.question) or ())
        chosen = [
            {"question": each.question, "selected": each.selected_options}
            for each in tool.user_feedback_schema or ()
        ]
        return f"User feedback received: {json.dumps(chosen, ensure_ascii=False)}", False
    for each in tool.user_input_schema or ():
        value = _read(decision.answer, each.name)
        each.value = each.value if value is None else value
    if tool.tool_name == _GET_INPUT:
        given = [{"name": each.name, "value": each.value} for each in tool.user_input_schema or ()]
        return f"User inputs retrieved: {json.dumps(given, ensure_ascii=False)}", False
    return None


def _set_result(tool: Any, text: str, *, failed: bool) -> tuple[str, bool]:
    tool.requires_confirmation = tool.requires_user_input = None
    tool.external_execution_required = tool.answered = True
    tool.result, tool.tool_call_error = text, failed
    return text, failed


def _read(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else None
