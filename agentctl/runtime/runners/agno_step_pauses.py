"""Pauses of workflows of agno: of a step, or of the agent in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agno.run.base import RunStatus

from agentctl.light_dataclass import dataclass
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import to_json_value
from agentctl.runtime.pauses import Ask, Decided, Leg
from agentctl.runtime.runners.agno_pauses import (
    AgnoCall,
    DecidedCalls,
    apply_decisions,
    build_object,
    list_asks,
    list_waiting,
)

_MAXIMUM_BYTES = 2**31

_OUTPUT, _CHOICES = "output", "choices"

_JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


@dataclass(frozen=True, slots=True)
class StepPause:
    """The reason why a workflow waits.

    Attributes:
        asks: the approvals.
        requirement: that of the library for the step.
        output: the run of the workflow.
        executor: the paused run of the agent or team in the step; None if the step itself waits.
        calls: the calls of that run which wait.
    """

    asks: Sequence[Ask]
    requirement: Any
    output: Any
    executor: Any = None
    calls: Sequence[AgnoCall] = ()


def find_step_pause(output: Any, owners: Iterable[Any]) -> StepPause | None:
    """Return what a paused workflow waits for; None if the server cannot give that.

    Args:
        owners: the agents and teams of the workflow, whose tools have schemas.
    """
    if output.error_requirements or not output.step_requirements:
        return None
    # The earlier ones are those of earlier pauses.
    requirement = output.step_requirements[-1]
    if not requirement.requires_executor_input:
        ask = _build_ask(requirement, f"step-pause-{len(output.step_requirements)}")
        return None if ask is None else StepPause([ask], requirement, output)
    runs = [run for run in output.step_executor_runs or () if run.status == RunStatus.paused]
    executor = next((run for run in runs if run.run_id == requirement.executor_run_id), None)
    calls = [] if executor is None else list_waiting(executor)
    if not calls:
        return None
    return StepPause(list_asks(calls, owners), requirement, output, executor, calls)


def _build_ask(requirement: Any, key: str) -> Ask | None:
    """Return the question of a step; None if it asks for nothing.

    The result of a step is an argument that can be edited.
    """
    name = requirement.step_name or ""
    if requirement.requires_output_review:
        content = getattr(requirement.step_output, "content", None)
        arguments = to_json_value({_OUTPUT: content}, _MAXIMUM_BYTES)
        kind = {"type": "string"} if isinstance(content, str) else {}
        schema, question = (
            build_object({_OUTPUT: kind}, [_OUTPUT]),
            requirement.output_review_message,
        )
        return Ask("approval", key, name, arguments, question=question, schema=schema)
    if requirement.requires_confirmation:
        schema, question = build_object({}, []), requirement.confirmation_message
        return Ask("approval", key, name, question=question, schema=schema)
    if requirement.requires_route_selection:
        items = {"enum": list(requirement.available_choices or ())}
        limit = {} if requirement.allow_multiple_selections else {"maxItems": 1}
        chosen = {"type": "array", "items": items, "minItems": 1, **limit}
        return _build_question(key, requirement, build_object({_CHOICES: chosen}, [_CHOICES]))
    if requirement.requires_user_input:
        return _build_question(key, requirement, _build_fields(requirement.user_input_schema or ()))
    return None


def _build_question(key: str, requirement: Any, schema: dict[str, Any]) -> Ask:
    name, question = requirement.step_name or "", requirement.user_input_message
    return Ask("input", key, name, question=question, schema=schema)


def _build_fields(fields: Iterable[Any]) -> dict[str, Any]:
    """Return the schema of an object with a value for each field; any object without fields."""
    properties: dict[str, dict[str, Any]] = {}
    for each in fields:
        kind = {"type": _JSON_TYPES[each.field_type]} if each.field_type in _JSON_TYPES else {}
        allowed = {"enum": list(each.allowed_values)} if each.allowed_values else {}
        described = {"description": each.description} if each.description else {}
        properties[each.name] = kind | allowed | described
    required = [each.name for each in fields if each.required]
    return build_object(properties, required) if properties else {"type": "object"}


def decide_step(pause: StepPause, leg: Leg) -> DecidedCalls:
    """Set the decisions on what a workflow waits for.

    Returns:
        The decided calls of the agent or team in the step.

    Raises:
        ExecutionError: a question was rejected.
    """
    requirement = pause.requirement
    if pause.executor is not None:
        calls = apply_decisions(pause.executor, leg)
        requirement.executor_requirements = pause.executor.requirements
        return calls
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
    return DecidedCalls()


def _decide_approval(pause: StepPause, decision: Decided) -> None:
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
        # The content of a workflow is that of the innermost step.
        result = pause.output.step_results[-1]
        while result.steps:
            result = result.steps[-1]
        result.content = edited
