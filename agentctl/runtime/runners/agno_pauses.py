"""Pauses of agno as approvals, and the decisions with which a paused run continues: of the calls of
agents and teams, and of the steps of workflows.

The texts of `get_user_input` and `ask_user` are those that the library gives to the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from agno.run.base import RunStatus
from agno.tools import Function, Toolkit
from agno.utils.team import get_member_id

from agentctl.records.approvals import ApprovalKind
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import to_json_value
from agentctl.runtime.pauses import Ask, DecidedCall, Leg, to_text
from agentctl.runtime.runners.library_runner import DecidedCalls

_ASK_USER = "ask_user"
_GET_INPUT = "get_user_input"

_JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
"""The types of JSON by the names of types of Python."""

_MAXIMUM_BYTES = 2**31

_OUTPUT = "output"
_CHOICES = "choices"

CallId = tuple[str, str]
"""The id of a run of agno, and the id of its call."""


class AgnoCall(NamedTuple):
    """A call that waits for a decision, an answer or a result."""

    run_id: str
    """The run of agno that makes the call: the run of the agent, or of a member."""

    owner_id: str
    """The agent or team of that run."""

    key: str
    """Its id in the run of agentctl, which has the approvals of all members."""

    tool: Any


def list_waiting(output: Any) -> list[AgnoCall]:
    """Return the calls that wait in a paused run and in the runs of its members."""
    waiting_tools = [
        (run, tool) for run in walk_paused(output) for tool in run.tools or () if is_waiting(tool)
    ]

    counts = Counter(tool.tool_call_id for _, tool in waiting_tools)

    calls = []
    for run, tool in waiting_tools:
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


def list_asks(waiting_calls: Iterable[AgnoCall], owners: Iterable[Any]) -> list[Ask]:
    """Return what calls wait for.

    Args:
        owners: the agents and teams; their tools have the schemas of their arguments.
    """
    by_id = {get_member_id(member): member for owner in owners for member in walk_members(owner)}

    # A model may ask for thousands of calls of one tool.
    find_schema = cache(lambda owner_id, name: _find_schema(by_id.get(owner_id), name))
    return [_build_ask(call, find_schema) for call in waiting_calls]


def walk_members(target: Any) -> Iterator[Any]:
    """Yield an agent or team, and the members of a team at any depth."""
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


def _build_ask(call: AgnoCall, find_schema: Callable[[str, str], dict[str, Any] | None]) -> Ask:
    tool = call.tool
    name = call.tool.tool_name or ""
    arguments = to_json_value(tool.tool_args or {}, _MAXIMUM_BYTES)

    policy: Any = "other" if tool.approval_type == "required" else "user"

    if tool.requires_confirmation:
        schema = find_schema(call.owner_id, name)
        return Ask("approval", call.key, name, arguments, policy=policy, schema=schema)

    if tool.external_execution_required:
        return Ask("external", call.key, name, arguments, policy=policy)

    questions = tool.user_feedback_schema or ()
    schema = _build_choices(questions) if questions else _build_fields(tool.user_input_schema or ())

    texts = [question.question for question in questions]

    return Ask("input", call.key, name, arguments, policy, "\n".join(texts) or None, schema)


def _build_fields(fields: Iterable[Any]) -> dict[str, Any]:
    """Return the schema of an answer: an object with a value for each field of a call or step."""
    properties: dict[str, dict[str, Any]] = {}
    required = []
    for field in fields:
        type_name = field.field_type
        kind = _JSON_TYPES.get(type_name.__name__ if isinstance(type_name, type) else type_name)

        values = getattr(field, "allowed_values", None)
        properties[field.name] = (
            ({"type": kind} if kind else {})
            | ({"enum": list(values)} if values else {})
            | ({"description": field.description} if field.description else {})
        )

        if getattr(field, "required", field.value is None):
            required.append(field.name)

    return _build_object(properties, required)


def _build_object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
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
    for question in questions:
        items: dict[str, Any] = {"type": "string"}
        if question.options:
            items = {"enum": [option.label for option in question.options]}

        limit = {} if question.multi_select else {"maxItems": 1}
        properties[question.question] = {"type": "array", "items": items, **limit}

    return {"type": "object", "properties": properties, "required": list(properties)}


def _find_schema(target: Any, name: str) -> dict[str, Any] | None:
    tools = getattr(target, "tools", None)

    for tool in tools if isinstance(tools, list) else ():
        is_kit = isinstance(tool, Toolkit)
        functions = [*{**tool.functions, **tool.async_functions}.values()] if is_kit else [tool]

        for function in functions:
            if not isinstance(function, Function) or function.name != name:
                continue

            function = function.model_copy(deep=True)

            try:
                function.process_entrypoint()
            except Exception:
                # The agent calls it as its model asks, too.
                return None

            return dict(function.parameters) if function.parameters else None

    return None


def apply_decisions(output: Any, leg: Leg, calls: DecidedCalls) -> None:
    """Set the decisions on the calls of a stored run, with the arguments that we stored.

    A call with a result is never made again: it becomes one that was executed elsewhere.

    Args:
        calls: gets the decided calls, by `CallId`.
    """
    for call in list_waiting(output):
        decision = leg.find(call.key)
        if decision is None:
            continue

        call_id = call.run_id, call.tool.tool_call_id or ""
        known_result = _apply(call.tool, decision)
        if known_result is not None:
            calls.settled[call_id] = known_result
        elif decision.kind == "approval":
            calls.approved[call_id] = decision

        for run in walk_paused(output):
            for requirement in run.requirements or ():
                # The library has other objects here, and reads only the objects of members.
                tool = requirement.tool_execution
                run_id = requirement.member_run_id or run.run_id

                is_same = (run_id, tool.tool_call_id) == call_id
                if is_same and _apply(tool, decision) is not None:
                    requirement.external_execution_result = tool.result


def _apply(tool: Any, decision: DecidedCall) -> tuple[str, bool] | None:
    """Set a decision on a call; return its text and whether it failed if it is not to be made."""
    if decision.kind == "approval" and decision.is_approved and decision.execution is None:
        tool.confirmed = True
        tool.tool_args = dict(decision.arguments)
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

        selected = [
            {"question": question.question, "selected": question.selected_options}
            for question in tool.user_feedback_schema or ()
        ]

        return f"User feedback received: {json.dumps(selected, ensure_ascii=False)}", False

    for field in tool.user_input_schema or ():
        value = _read(decision.answer, field.name)
        field.value = field.value if value is None else value

    if tool.tool_name == _GET_INPUT:
        values = [
            {"name": field.name, "value": field.value} for field in tool.user_input_schema or ()
        ]
        return f"User inputs retrieved: {json.dumps(values, ensure_ascii=False)}", False

    return None


def _set_result(tool: Any, text: str, *, failed: bool) -> tuple[str, bool]:
    tool.requires_confirmation = tool.requires_user_input = None
    tool.external_execution_required = tool.answered = True
    tool.result = text
    tool.tool_call_error = failed
    return text, failed


def _read(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else None


@dataclass(frozen=True, slots=True)
class StepPause:
    """The reason why a workflow waits."""

    asks: Sequence[Ask]
    requirement: Any
    output: Any

    executor: Any = None
    """The paused run of the agent or team in the step; None if the step itself waits."""

    calls: Sequence[AgnoCall] = ()
    """The calls of that run which wait."""


def find_step_pause(output: Any, owners: Iterable[Any]) -> StepPause | None:
    """Return what a paused workflow waits for; None if the server cannot give that.

    Args:
        owners: the agents and teams of the workflow, whose tools have schemas.
    """
    if output.error_requirements or not output.step_requirements:
        return None

    # Earlier requirements belong to earlier pauses.
    requirement = output.step_requirements[-1]

    if not requirement.requires_executor_input:
        ask = _build_step_ask(requirement, f"step-pause-{len(output.step_requirements)}")
        return None if ask is None else StepPause([ask], requirement, output)

    runs = [run for run in output.step_executor_runs or () if run.status == RunStatus.paused]
    executor = next((run for run in runs if run.run_id == requirement.executor_run_id), None)

    calls = [] if executor is None else list_waiting(executor)
    if not calls:
        return None

    return StepPause(list_asks(calls, owners), requirement, output, executor, calls)


def _build_step_ask(requirement: Any, key: str) -> Ask | None:
    """Return the question of a step; None if it asks for nothing.

    The result of a step is an argument that can be edited.
    """
    kind: ApprovalKind = "input"
    arguments = {}
    question = requirement.user_input_message

    if requirement.requires_output_review:
        content = getattr(requirement.step_output, "content", None)
        arguments = to_json_value({_OUTPUT: content}, _MAXIMUM_BYTES)
        edited = {"type": "string"} if isinstance(content, str) else {}
        kind = "approval"
        question = requirement.output_review_message

        schema = _build_object({_OUTPUT: edited}, [_OUTPUT])
    elif requirement.requires_confirmation:
        kind = "approval"
        question = requirement.confirmation_message
        schema = _build_object({}, [])
    elif requirement.requires_route_selection:
        items = {"enum": list(requirement.available_choices or ())}
        limit = {} if requirement.allow_multiple_selections else {"maxItems": 1}
        chosen = {"type": "array", "items": items, "minItems": 1, **limit}
        schema = _build_object({_CHOICES: chosen}, [_CHOICES])
    elif requirement.requires_user_input:
        fields = requirement.user_input_schema
        schema = _build_fields(fields) if fields else {"type": "object"}
    else:
        return None

    name = requirement.step_name or ""
    return Ask(kind, key, name, arguments, question=question, schema=schema)


def decide_step(pause: StepPause, leg: Leg, calls: DecidedCalls) -> None:
    """Set the decisions on what a workflow waits for.

    Args:
        calls: gets the decided calls of the agent or team in the step.
    """
    requirement = pause.requirement
    if pause.executor is not None:
        apply_decisions(pause.executor, leg, calls)
        requirement.executor_requirements = pause.executor.requirements
        return

    (asked,) = pause.asks

    decision = leg.find(asked.tool_call_id)
    if decision is None:
        raise ExecutionError("INTERRUPTED")

    if asked.kind == "approval":
        _decide_approval(pause, decision)
    elif decision.status != "answered":
        raise ExecutionError(
            "AGENT_FAILED", f"The question of the step {asked.tool_name} was not answered"
        )
    elif requirement.requires_route_selection:
        requirement.selected_choices = list(decision.answer[_CHOICES])
    else:
        requirement.set_user_input(validate=False, **decision.answer)


def _decide_approval(pause: StepPause, decision: DecidedCall) -> None:
    requirement = pause.requirement

    if not decision.is_approved:
        requirement.reject(decision.note)
        return

    requirement.confirm()
    if not requirement.requires_output_review:
        return

    edited = decision.arguments.get(_OUTPUT)
    if edited != getattr(requirement.step_output, "content", None):
        requirement.edit(edited)
        # The content of a workflow is the content of its innermost step.
        result = pause.output.step_results[-1]
        while result.steps:
            result = result.steps[-1]
        result.content = edited
