"""Tools of openai-agents that need an approval: pauses, and the state with which a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from agents import Agent, FunctionTool, RunState
from agents.items import ToolApprovalItem
from agents.result import RunResultStreaming

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import clean_json_value
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.pauses import Ask, Decided, Leg, Paused, to_text
from agentctl.runtime.runners.hosted_run import HostedRun

if TYPE_CHECKING:
    from agentctl.runtime.runners.openai_agents_parts import RunParts

_FUNCTION_CALL = "function_call"

_FIELDS = frozenset({"action", "actions", "code", "input", "operation", "queries", "query"})
"""The fields of calls that are not calls of functions, as the record has them."""


class DecidedCalls:
    """The decided calls of a pause; stores their begin and their end.

    Attributes:
        refusals: the texts of the calls that are not to be made, by their ids.
        done: the ids of those of them that were made before, in a leg that was lost.
    """

    def __init__(self, run: HostedRun) -> None:
        self.refusals: dict[str, str] = {}
        self.done: set[str] = set()
        self._run = run
        self._approved: dict[str, Decided] = {}

    def approve(self, decision: Decided) -> None:
        self._approved[decision.tool_call_id] = decision

    async def begin(self, call_id: str) -> None:
        """Store that a call begins. The library makes it when this returns."""
        decision = self._approved.get(call_id)
        if decision is None:
            await self._run.begin_effect()
        else:
            await self._run.begin_approved(decision.approval_id)

    async def end(self, call_id: str, text: str, *, failed: bool) -> None:
        decision = self._approved.pop(call_id, None)
        if decision is not None:
            await self._run.end_approved(decision.approval_id, text, failed=failed)


def build_pause(
    result: RunResultStreaming, run: HostedRun, parts: RunParts, report: Mapping[str, Any]
) -> Paused:
    """Return the pause that asks for the calls of an interrupted run.

    Args:
        parts: the run and its members.
        report: the state of the report for the next leg.

    Raises:
        ExecutionError: the run cannot be stored.
    """
    asks = [_build_ask(item) for item in result.interruptions]
    try:
        stored = result.to_state().to_json(context_serializer=lambda _: {})
        size = len(orjson.dumps(stored))
    except Exception as error:
        # Values of the agent's code, which have their own serializers.
        raise ExecutionError(
            "AGENT_FAILED", "The run cannot wait: it has a value that cannot be stored"
        ) from error
    run.reserve(size)
    for ask in asks:
        part = parts.find_owner(ask.tool_call_id)
        part.start_call(ask.tool_call_id, ask.tool_name, ask.arguments)
    return Paused(asks, {"state": stored, **report})


async def restore_state(
    agent: Agent[Any], context: Any, leg: Leg, calls: DecidedCalls
) -> RunState[Any]:
    """Return the state of a paused run with the decisions, and with the arguments that we stored.

    A call with a result is never made again: for the library it is a rejected one whose message is
    the result.

    Raises:
        ExecutionError: this version of the library cannot read the state, or a call cannot be made
            with the approved arguments.
    """
    stored = orjson.loads(orjson.dumps(leg.state["state"]))
    edited = {each.tool_call_id: each for each in leg.decisions if each.is_edited}
    changed = _edit_calls(stored, edited)

    try:
        state = await RunState.from_json(agent, stored, context_deserializer=lambda _: context)
    except Exception as error:
        detail = "The run cannot be read by this version of openai-agents or of the agent"
        raise ExecutionError("AGENT_FAILED", detail) from error

    for item in state.get_interruptions():
        call_id = item.call_id or ""
        decision = leg.find(call_id)
        if decision is None:
            raise ExecutionError("INTERNAL", "A decision of the run is missing")
        if decision.execution in ("done", "failed"):
            calls.refusals[call_id] = to_text(decision.result)
            calls.done |= {call_id} if decision.execution == "done" else set()
        elif not decision.is_approved:
            calls.refusals[call_id] = decision.refusal
        elif decision.is_edited and call_id not in changed:
            detail = f"The call of {decision.tool_name} cannot be made with other arguments"
            raise ExecutionError("AGENT_FAILED", detail)
        else:
            calls.approve(decision)
            state.approve(item)
            continue
        state.reject(item, rejection_message=calls.refusals[call_id])
    return state


def _build_ask(item: ToolApprovalItem) -> Ask:
    name = item.name or "tool"
    arguments = clean_json_value(read_arguments(item.raw_item))
    tools = [tool for tool in item.agent.tools if isinstance(tool, FunctionTool)]
    schema = next((tool.params_json_schema for tool in tools if tool.name == name), None)
    return Ask("approval", item.call_id or "", name, arguments, schema=schema)


def read_arguments(raw: Any) -> dict[str, Any]:
    """Return the arguments of a call: those of a function, else the fields of another kind."""
    values = raw if isinstance(raw, Mapping) else raw.model_dump(mode="json", exclude_none=True)
    if isinstance(values.get("arguments"), str):
        return parse_arguments(values["arguments"])
    return {name: values[name] for name in values if name in _FIELDS}


def _edit_calls(value: Any, edited: Mapping[str, Decided]) -> set[str]:
    """Replace the arguments of calls in a state, and return the ids of these calls."""
    changed: set[str] = set()
    if isinstance(value, list):
        for each in value:
            changed |= _edit_calls(each, edited)
    elif isinstance(value, dict):
        decision = edited.get(str(value.get("call_id")))
        if decision is not None and value.get("type") == _FUNCTION_CALL:
            value["arguments"] = orjson.dumps(decision.arguments).decode()
            changed.add(decision.tool_call_id)
        if isinstance(value.get("tool_invocations"), dict):
            # The library checks that a call has not changed. It takes over one that it lacks.
            for call_id in edited:
                value["tool_invocations"].pop(call_id, None)
        for each in value.values():
            changed |= _edit_calls(each, edited)
    return changed
